// The anchors of a training step: green objects, red background, grey ignored. Sliders move the two thresholds of the IoU.
// An anchor that leaves the image is ignored. Boxes are in pixels, and their ends belong to them.

const {size, grid, stride, truth} = data;
const COLOURS = {1: "#2fbf71", 0: "#e5484d", "-1": "#8b949e"};
const NAMES = {1: "object", 0: "background", "-1": "ignored"};

/** All anchors, in the layer's order: by row, column, anchor. */
const anchors = [];
for (let row = 0; row < grid[0]; row++)
  for (let column = 0; column < grid[1]; column++)
    for (const base of data.anchors) {
      const box = base.map((v, i) => v + stride * (i % 2 ? row : column));
      const inside = box[0] >= 0 && box[1] >= 0 && box[2] < size[0] && box[3] < size[1];
      anchors.push({box, row, column, inside, overlaps: inside ? truth.map((one) => overlapOf(box, one).iou) : []});
    }
const inside = anchors.filter((anchor) => anchor.inside);
const best = truth.map((_, k) => Math.max(...inside.map((anchor) => anchor.overlaps[k])));
for (const anchor of inside) {
  anchor.most = Math.max(...anchor.overlaps);
  anchor.isBest = anchor.overlaps.some((value, k) => value === best[k] && value > 0);
}

const state = {low: data.low, high: data.high, forced: true, shown: "1", cell: null};

function label(anchor) {
  if (!anchor.inside) return -1;
  if (anchor.most >= state.high || (state.forced && anchor.isBest)) return 1;
  return anchor.most < state.low ? 0 : -1;
}

const canvas = el("canvas", {width: 2 * size[0], height: 2 * size[1], tabindex: 0, role: "img"});
canvas.style.cssText = "width:100%;height:auto;display:block";
const image = new Image();
const counts = el("p", {class: "row", "aria-live": "polite"});
const note = el("p", {class: "quiet", id: "cell", "aria-live": "polite"});

const drawnBoxes = () =>
  state.cell
    ? anchors.filter((anchor) => anchor.row === state.cell[0] && anchor.column === state.cell[1])
    : anchors.filter((anchor) => String(label(anchor)) === state.shown).filter((_, k, all) => k % Math.ceil(all.length / 400) === 0);

function draw() {
  const context = canvas.getContext("2d");
  context.setTransform(2, 0, 0, 2, 0, 0);
  if (image.complete) context.drawImage(image, 0, 0, ...size);
  const box = ([x1, y1, x2, y2], colour, width, dash = []) => {
    Object.assign(context, {strokeStyle: colour, lineWidth: width});
    context.setLineDash(dash);
    context.strokeRect(x1, y1, x2 - x1, y2 - y1);
  };
  for (const anchor of drawnBoxes()) box(anchor.box, COLOURS[label(anchor)], 1);
  for (const one of truth) {
    box(one, "#000000", 3);
    box(one, "#ffffff", 1.5, [4, 3]);
  }
}

function update() {
  const sums = {1: 0, 0: 0, "-1": 0};
  for (const anchor of anchors) sums[label(anchor)]++;
  counts.replaceChildren(
    ...["1", "0", "-1"].map((key) =>
      el("span", {}, el("i", {class: "swatch", style: `background:${COLOURS[key]}`}), ` ${NAMES[key]}: `,
        el("output", {class: "number", id: `count${key}`}, String(sums[key]))),
    ),
  );
  const without = best.filter((value) => value < state.high).length;
  note.textContent = state.cell
    ? `Cell (row ${state.cell[0]}, column ${state.cell[1]}): ` +
      drawnBoxes().map((anchor) => (anchor.inside ? `${written(anchor.most)} ${NAMES[label(anchor)]}` : "outside")).join("; ")
    : `${without} of ${truth.length} true boxes have no anchor with an IoU of at least ${written(state.high)}.`;
  canvas.setAttribute("aria-label", `The photo with ${drawnBoxes().length} anchors and ${truth.length} true boxes; arrow keys choose a cell`);
  draw();
}

const low = numberSlider("Background below an IoU of", 0, 1, 0.05, state.low, (value) => {
  state.low = Math.min(value, state.high);
  low.set(state.low);
  update();
});
const high = numberSlider("Object from an IoU of", 0, 1, 0.05, state.high, (value) => {
  state.high = Math.max(value, state.low);
  high.set(state.high);
  update();
});
const forced = el("input", {type: "checkbox", checked: true});
forced.addEventListener("change", () => {
  state.forced = forced.checked;
  update();
});
const choices = [["1", "Objects"], ["0", "Background"], ["-1", "Ignored"]].map(([key, text]) =>
  el("button", {type: "button", "aria-pressed": String(key === state.shown), onclick: () => choose(key, null)}, text),
);

function choose(key, cell) {
  Object.assign(state, {shown: key, cell});
  choices.forEach((one, k) => one.setAttribute("aria-pressed", String(!cell && ["1", "0", "-1"][k] === key)));
  update();
}

canvas.addEventListener("click", (event) => {
  const {left, top, width} = canvas.getBoundingClientRect();
  const at = [event.clientY - top, event.clientX - left].map((v) => Math.floor((v * size[0]) / width / stride));
  choose(state.shown, at.map((v, i) => clamp(v, 0, grid[i] - 1)));
});
canvas.addEventListener("keydown", (event) => {
  const by = arrowOf(event);
  if (!by) return;
  const now = state.cell ?? grid.map((side) => side >> 1);
  choose(state.shown, now.map((v, i) => clamp(v + by[1 - i], 0, grid[i] - 1)));
});

root.append(
  el("div", {class: "row", role: "group", "aria-label": "Shown anchors"}, choices),
  canvas,
  counts,
  low.row,
  high.row,
  el("label", {class: "row"}, forced, "The best anchors of each true box are objects"),
  note,
  el("p", {class: "quiet"}, "Dashed: true boxes. At most 400 anchors are drawn. Click a cell, or use the arrow keys, to see its anchors."),
);
image.addEventListener("load", draw);
image.src = data.picture;
update();
