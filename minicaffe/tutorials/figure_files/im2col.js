// The windows of a map as the columns of a matrix. The window slides, its column lights up, and the filter's row times the
// column is one number of the top.

const CELL = 30;
const SMALL = 17;
const KERNEL = data.filter.length;

let variant = data.variants[0];
let at = [0, 0];

const place = (i, j, side) => ({x: j * side, y: i * side, width: side, height: side});

function cell(i, j, value, fill, side = CELL, attributes = {}) {
  const text = svg("text", {x: (j + 0.5) * side, y: (i + 0.5) * side + 5, "text-anchor": "middle"}, written(value, 0));
  return svg("g", attributes, svg("rect", {...place(i, j, side), fill, stroke: "var(--line)"}), text);
}

/** A titled drawing of rows x columns of cells. */
function panel(title, rows, columns, side, children, attributes) {
  const drawing = svg("svg", {viewBox: `-2 -2 ${columns * side + 4} ${rows * side + 4}`, ...attributes}, children);
  const wide = `${columns * side + 4}px`;
  return el("div", {style: `flex:0 1 ${wide};width:100%;max-width:${wide}`}, el("h2", {}, title), drawing);
}

/** Pointers on a drawing choose a cell, pressed or dragged. */
function choose(drawing, side, onchoose) {
  const take = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const [x, y] = placeIn(drawing, event);
    onchoose(Math.floor(y / side), Math.floor(x / side));
  };
  drawing.addEventListener("pointerdown", take);
  drawing.addEventListener("pointermove", take);
}

function select(i, j) {
  at = [clamp(i, 0, variant.top.length - 1), clamp(j, 0, variant.top[0].length - 1)];
  withFocus(root, draw);
}

function mapPanel() {
  const {pad, stride} = variant;
  const [height, width] = [data.map.length + 2 * pad, data.map[0].length + 2 * pad];
  const cells = [];
  for (let i = 0; i < height; i++)
    for (let j = 0; j < width; j++) {
      const value = data.map[i - pad]?.[j - pad];
      cells.push(cell(i, j, value ?? 0, value === undefined ? "var(--card)" : "var(--paper)"));
    }
  const label = `The window in row ${at[0]}, column ${at[1]}; arrow keys move it`;
  const side = KERNEL * CELL;
  const corner = {x: at[1] * stride * CELL, y: at[0] * stride * CELL, width: side, height: side};
  const box = svg("rect", {class: "box one", ...corner, tabindex: 0, role: "img", "aria-label": label});
  box.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (!by) return;
    select(at[0] + by[1], at[1] + by[0]);
    root.querySelector(".box").focus();
  });
  const found = panel("The map", height, width, CELL, [cells, box], {role: "group", "aria-label": "The map"});
  const middle = (pixel) => Math.round((pixel - (KERNEL - 1) / 2) / stride);
  choose(found.lastChild, CELL, (i, j) => select(middle(i), middle(j)));
  return found;
}

function topPanel() {
  const cells = variant.top.map((row, i) =>
    row.map((value, j) => cell(i, j, value, i === at[0] && j === at[1] ? "var(--lit)" : "var(--paper)")),
  );
  const label = `The top; row ${at[0]}, column ${at[1]} is ${variant.top[at[0]][at[1]]}`;
  const found = panel("The top", cells.length, cells[0].length, CELL, cells, {role: "img", "aria-label": label});
  choose(found.lastChild, CELL, select);
  return found;
}

function matrixPanel(lit) {
  const across = variant.top[0].length;
  const most = Math.max(...data.map.flat());
  const cells = variant.columns.map((row, i) =>
    row.map((value, j) => {
      const shade = {fill: "var(--ink)", "fill-opacity": (0.7 * value) / most, stroke: "var(--line)", "stroke-width": 0.5};
      return svg("rect", {...place(i, j, SMALL), ...shade});
    }),
  );
  const [rows, columns] = [cells.length, cells[0].length];
  const column = {x: lit * SMALL, y: 0, width: SMALL, height: rows * SMALL};
  cells.push(svg("rect", {class: "one", ...column, fill: "var(--one)", "fill-opacity": 0.3, "stroke-width": 2.5}));
  const label = `The matrix, ${rows} rows and ${columns} columns; column ${lit} is the window's`;
  const found = panel(`The matrix of columns: ${rows} × ${columns}`, rows, columns, SMALL, cells, {role: "img", "aria-label": label});
  choose(found.lastChild, SMALL, (i, j) => select(Math.floor(j / across), j % across));
  return found;
}

function sums(lit) {
  const filter = data.filter.flat();
  const pixels = variant.columns.map((row) => row[lit]);
  const line = (name, values) =>
    el("tr", {}, el("th", {scope: "row"}, name), values.map((value) => el("td", {style: "padding:2px 4px"}, written(value, 0))));
  const products = filter.map((weight, k) => weight * pixels[k]);
  const total = products.reduce((a, b) => a + b);
  return [
    el("table", {style: "width:max-content"}, line("filter", filter), line("column", pixels), line("product", products)),
    el("p", {class: "formula", "aria-live": "polite"}, "filter · column = ", el("output", {id: "product", class: "number"}, written(total, 0))),
  ];
}

function draw() {
  const lit = at[0] * variant.top[0].length + at[1];
  const names = data.variants.map(({stride, pad}, k) => [k, `stride ${stride}, padding ${pad}`]);
  const choice = choiceOf("Stride and padding", names, data.variants.indexOf(variant), (k) => {
    variant = data.variants[k];
    select(...at);
  });
  const cells = data.filter.map((row, i) => row.map((value, j) => cell(i, j, value, "var(--paper)")));
  const filter = panel("The filter", KERNEL, KERNEL, CELL, cells, {role: "img", "aria-label": "The filter"});
  root.replaceChildren(
    root.firstChild,
    el("div", {class: "row"}, choice),
    el("div", {class: "row", style: "align-items:flex-start"}, mapPanel(), filter, topPanel()),
    matrixPanel(lit),
    ...sums(lit),
    el("p", {class: "quiet"}, "Press on a pixel, on the top, or on a column. Keys: the arrows move the window."),
  );
}

document.documentElement.style.setProperty("--lit", "light-dark(#ffd9bd, #6b3a17)");
draw();
