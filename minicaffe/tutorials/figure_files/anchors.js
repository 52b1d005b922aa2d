// One anchor of a map, chosen by cell, size and ratio: its corners, its overlap with the nearest true box, its objectness.

const [WIDTH, HEIGHT] = data.size;
const [ROWS, COLUMNS] = data.map;
const STRIDE = data.stride;
const objectness = Uint8Array.from(atob(data.objectness), (letter) => letter.charCodeAt(0)); // in hundredths

const SCALES = data.scales.length;
const kindOf = (anchor) => ({size: anchor % SCALES, ratio: Math.floor(anchor / SCALES)});
const chosen = {row: data.cell[0], column: data.cell[1], ...kindOf(data.first)};
const heat = svg("image", {preserveAspectRatio: "none", style: "image-rendering: pixelated"});
const centre = svg("circle", {class: "centre", r: 3});
const nearest = svg("rect", {class: "outline good"});
const box = svg("rect", {class: "box one", tabindex: 0, role: "img"});
const numbers = el("p", {class: "formula", "aria-live": "polite"});
const truths = data.truth.map((corners) => placed(svg("rect", {class: "outline good thin"}), corners));
const drawing = onPhoto("The scene, its true boxes and an anchor", heat, truths, nearest, box, centre);

const index = () => chosen.ratio * SCALES + chosen.size;
const scoreAt = (row, column) => objectness[(row * COLUMNS + column) * data.anchors.length + index()] / 100;

function update() {
  const {row, column} = chosen;
  const base = data.anchors[index()];
  const corners = base.map((v, i) => v + STRIDE * (i % 2 ? row : column));
  const shared = data.truth.map((other) => overlapOf(corners, other));
  const best = shared.reduce((k, each, i) => (each.iou > shared[k].iou ? i : k), 0);
  const middle = [0, 1].map((i) => (base[i] + base[i + 2]) / 2);
  placed(box, corners);
  placed(nearest, data.truth[best]);
  nearest.style.display = shared[best].iou ? "" : "none";
  centre.setAttribute("cx", middle[0] + 0.5 + STRIDE * column);
  centre.setAttribute("cy", middle[1] + 0.5 + STRIDE * row);
  const name = `Anchor ${index()} of the cell in row ${row}, column ${column}`;
  box.setAttribute("aria-label", `${name}; arrow keys choose another cell`);
  const line = (name, i, cell) =>
    `${name}: ${STRIDE} · ${cell} + ${short(middle[i])} = ${short(middle[i] + STRIDE * cell)}, ` +
    `∓ (${short(sidesOf(base)[i])} − 1) / 2: ${short(corners[i])} to ${short(corners[i + 2])}`;
  const {intersection, union, iou} = shared[best];
  numbers.replaceChildren(
    `row ${row}, column ${column}, anchor ${index()}: ${sidesOf(base).map(short).join(" × ")} pixels`,
    el("br"),
    line("x", 0, column),
    el("br"),
    line("y", 1, row),
    el("br"),
    iou
      ? `IoU with the nearest true box, a ${data.names[best]}: ${short(intersection)} / ${short(union)} = `
      : "It touches no true box: IoU ",
    el("output", {id: "iou", class: "number"}, written(iou, 3)),
    el("br"),
    "objectness of the net: ",
    el("output", {id: "objectness", class: "number"}, written(scoreAt(row, column), 2)),
  );
  drawHeat();
}

/** The chosen anchor's objectness in every cell, each around its anchors' centre. */
function drawHeat() {
  heat.style.display = shows.checked ? "" : "none";
  if (!shows.checked) return;
  const canvas = el("canvas", {width: COLUMNS, height: ROWS});
  const context = canvas.getContext("2d");
  for (let row = 0; row < ROWS; row++)
    for (let column = 0; column < COLUMNS; column++) {
      context.fillStyle = `rgba(255, 215, 0, ${0.85 * scoreAt(row, column)})`;
      context.fillRect(column, row, 1, 1);
    }
  const [x, y] = [0, 1].map((i) => (data.anchors[0][i] + data.anchors[0][i + 2] + 1 - STRIDE) / 2);
  const place = {x, y, width: COLUMNS * STRIDE, height: ROWS * STRIDE, href: canvas.toDataURL()};
  for (const [key, value] of Object.entries(place)) heat.setAttribute(key, value);
}

function choose(row, column) {
  chosen.row = clamp(row, 0, ROWS - 1);
  chosen.column = clamp(column, 0, COLUMNS - 1);
  update();
}

const point = (event) => {
  const [x, y] = placeIn(drawing, event);
  const [x0, y0] = [0, 1].map((i) => (data.anchors[0][i] + data.anchors[0][i + 2] + 1) / 2);
  choose(Math.round((y - y0) / STRIDE), Math.round((x - x0) / STRIDE));
};
drawing.addEventListener("pointerdown", (event) => {
  event.preventDefault();
  box.focus({preventScroll: true});
  drawing.setPointerCapture(event.pointerId);
  point(event);
});
drawing.addEventListener("pointermove", (event) => drawing.hasPointerCapture(event.pointerId) && point(event));
box.addEventListener("keydown", (event) => {
  const by = arrowOf(event);
  if (by) choose(chosen.row + by[1], chosen.column + by[0]);
});

function sliderOver(label, texts, name) {
  const change = (k) => {
    chosen[name] = k;
    update();
  };
  return numberSlider(label, 0, texts.length - 1, 1, chosen[name], change, (k) => texts[k]);
}
const sizes = sliderOver("size", data.scales.map((scale) => `${short(data.base * scale)} pixels`), "size");
const ratios = sliderOver("height / width", data.ratios.map(short), "ratio");
const shows = el("input", {type: "checkbox", onchange: update});
const best = button("Best of the cell", "Best of the cell: choose the anchor with the highest objectness", () => {
  const start = (chosen.row * COLUMNS + chosen.column) * data.anchors.length;
  const scores = objectness.subarray(start, start + data.anchors.length);
  const k = scores.indexOf(Math.max(...scores));
  Object.assign(chosen, kindOf(k));
  sizes.set(chosen.size);
  ratios.set(chosen.ratio);
  update();
});
root.append(
  drawing,
  sizes.row,
  ratios.row,
  el("div", {class: "row"}, best, el("label", {}, shows, " show the objectness of this anchor in every cell")),
  numbers,
  quiet("Click or drag to choose a cell, or use the arrow keys. Orange: the anchor. Green: the true boxes."),
);
update();
