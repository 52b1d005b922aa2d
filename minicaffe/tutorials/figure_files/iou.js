// Two boxes to drag: their intersection, their union, and the quotient. Boxes are in pixels, and their ends belong to them.

const SIZE = [320, 180];

const boxes = data.boxes.map((box) => [...box]);
const drawing = svg("svg", {viewBox: `0 0 ${SIZE[0]} ${SIZE[1]}`, role: "group", "aria-label": "Two boxes"});
const shared = svg("rect", {fill: "var(--good)", opacity: 0.35});
const numbers = el("p", {class: "formula", "aria-live": "polite"});

function update() {
  const [a, b] = boxes;
  const {inner, width, height, intersection, union, iou} = overlapOf(a, b);
  for (const [key, value] of Object.entries({x: inner[0], y: inner[1], width, height})) shared.setAttribute(key, value);
  numbers.replaceChildren(
    `intersection ${width} × ${height} = ${intersection}; union ${areaOf(a)} + ${areaOf(b)} − ${intersection} = ${union}; `,
    el("span", {class: "number"}, "IoU = ", el("output", {id: "iou"}, written(iou, 3))),
  );
}

const drags = boxes.map((box, k) =>
  dragBox(drawing, `Box ${"AB"[k]}`, ["one", "two"][k], box, SIZE, (now) => {
    boxes[k] = now;
    update();
  }),
);
drawing.append(shared, ...drags.map((drag) => drag.group));
root.append(drawing, numbers, el("p", {class: "quiet"}, "Drag a box, or its lower right corner. Keys: arrows, with Shift the corner."));
update();
