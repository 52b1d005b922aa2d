// A cell of a layer's map, and its receptive field on the image. A place on the map is chosen by mouse, touch or arrow keys.

const [WIDTH, HEIGHT] = data.size;

let depth = data.layers.length - 1;
let place = [0.5, 0.5]; // of the whole map: x, y

const layer = () => data.layers[depth];
const shape = () => [layer().rows.length, layer().columns.length];
const cell = () => shape().map((count, axis) => Math.min(Math.floor(place[1 - axis] * count), count - 1));

const dark = svg("path", {fill: "#000", opacity: 0.55, "fill-rule": "evenodd"});
const field = svg("rect", {fill: "none", stroke: "#ff9a5c", "stroke-width": 3});
const photo = svg(
  "svg",
  {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img"},
  svg("image", {href: data.photo, width: WIDTH, height: HEIGHT}),
  dark,
  field,
);
const mapPicture = svg("image", {width: WIDTH, height: HEIGHT, preserveAspectRatio: "none", style: "image-rendering: pixelated"});
const grid = svg("path", {stroke: "#000", "stroke-width": 0.5, opacity: 0.4, fill: "none"});
const chosen = svg("rect", {fill: "none", stroke: "#ff9a5c", "stroke-width": 3});
const map = svg(
  "svg",
  {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0, style: "cursor: crosshair"},
  mapPicture,
  grid,
  chosen,
);

const numbers = el("p", {class: "formula", "aria-live": "polite"});
const formula = el("p", {class: "formula"});
const layers = numberSlider(
  "Layer",
  1,
  data.layers.length,
  1,
  depth + 1,
  (now) => {
    depth = now - 1;
    update();
  },
  0,
);

/** The theoretical size after the layers up to this one, and the sum that gives it. */
function theory() {
  let [size, jump, sum] = [1, 1, "1"];
  for (const {kernel, stride, dilation} of data.layers.slice(0, depth + 1)) {
    size += dilation * (kernel - 1) * jump;
    sum += ` + ${dilation * (kernel - 1)}·${jump}`;
    jump *= stride;
  }
  return [size, jump, sum];
}

function update() {
  const [row, column] = cell();
  const [rows, columns] = shape();
  const [[top, bottom], [left, right]] = [layer().rows[row], layer().columns[column]];
  const [height, width] = [bottom - top + 1, right - left + 1];
  const share = (100 * width * height) / (WIDTH * HEIGHT);
  const [size, jump, sum] = theory();
  filled(field, {x: left, y: top, width, height}, []);
  dark.setAttribute("d", `M0 0H${WIDTH}V${HEIGHT}H0ZM${left} ${top}h${width}v${height}h${-width}Z`);
  mapPicture.setAttribute("href", layer().map);
  const [across, down] = [WIDTH / columns, HEIGHT / rows];
  const lines = [...Array(columns).keys()].map((c) => `M${c * across} 0V${HEIGHT}`);
  const others = [...Array(rows).keys()].map((r) => `M0 ${r * down}H${WIDTH}`);
  grid.setAttribute("d", columns > 60 ? "" : [...lines, ...others].join(""));
  filled(chosen, {x: column * across, y: row * down, width: across, height: down}, []);
  const text = `cell (${row}, ${column}) of ${layer().name}`;
  map.setAttribute("aria-label", `${layer().name}, ${rows} × ${columns} cells: ${text}; arrow keys move it, with Shift by five`);
  photo.setAttribute("aria-label", `The image; ${text} depends on rows ${top} to ${bottom}, columns ${left} to ${right}`);
  numbers.replaceChildren(
    `${layer().name}: ${rows} × ${columns} cells, stride ${jump}. Cell (${row}, ${column}) depends on rows ${top} to ${bottom}, `,
    `columns ${left} to ${right}: `,
    el("output", {id: "field", class: "number"}, `${height} × ${width}`),
    " pixels, ",
    el("output", {id: "share", class: "number"}, `${written(share, 1)} %`),
    " of the image",
  );
  formula.replaceChildren(
    `without the image's edges: ${sum} = `,
    el("output", {id: "size", class: "number"}, String(size)),
    " pixels a side",
  );
}

function choose(event) {
  const [x, y] = placeIn(map, event);
  place = [clamp(x / WIDTH, 0, 1), clamp(y / HEIGHT, 0, 1)];
  update();
}
map.addEventListener("pointerdown", (event) => {
  map.setPointerCapture(event.pointerId);
  choose(event);
});
map.addEventListener("pointermove", (event) => {
  if (map.hasPointerCapture(event.pointerId)) choose(event);
});
map.addEventListener("keydown", (event) => {
  const by = arrowOf(event);
  if (!by) return;
  const [row, column] = cell();
  const [rows, columns] = shape();
  const step = event.shiftKey ? 5 : 1;
  const moved = [clamp(column + step * by[0], 0, columns - 1), clamp(row + step * by[1], 0, rows - 1)];
  place = [(moved[0] + 0.5) / columns, (moved[1] + 0.5) / rows];
  update();
});

root.append(
  layers.row,
  el(
    "div",
    {class: "side"},
    el("div", {}, el("p", {class: "quiet"}, "The map, mean of its channels: click a cell"), map),
    el("div", {}, el("p", {class: "quiet"}, "The image: the bright part is the cell's field"), photo),
  ),
  numbers,
  formula,
  el("p", {class: "quiet"}, "Keys on the map: arrows, with Shift five cells."),
);
update();
