// An anchor moved by four deltas: the formula with numbers, and the overlap with a true box.

const NAMES = ["dx", "dy", "dw", "dh"];
const {anchor, truth} = data;
let deltas = [0, 0, 0, 0];

const moved = svg("rect", {class: "outline two"});
const numbers = el("p", {class: "formula", "aria-live": "polite"});
const drawing = onPhoto(
  "The scene, an anchor, the anchor moved, and the true box",
  placed(svg("rect", {class: "outline good"}), truth),
  placed(svg("rect", {class: "outline one dashed"}), anchor),
  moved,
);

function update() {
  const size = sidesOf(anchor);
  const middle = [0, 1].map((i) => anchor[i] + size[i] / 2);
  const centre = middle.map((v, i) => v + deltas[i] * size[i]);
  const length = size.map((v, i) => v * Math.exp(deltas[i + 2]));
  const corners = [...centre.map((v, i) => v - length[i] / 2), ...centre.map((v, i) => v + length[i] / 2)];
  const {iou} = overlapOf(corners, truth);
  placed(moved, corners);
  const line = (name, side, i) => [
    `${name}: ${short(middle[i])} + (${written(deltas[i], 3)}) · ${short(size[i])} = ${written(centre[i], 1)}; `,
    `${side}: ${short(size[i])} · exp(${written(deltas[i + 2], 3)}) = ${written(length[i], 1)}; `,
    `${written(centre[i], 1)} ∓ ${written(length[i], 1)} / 2: `,
    el("output", {id: name, class: "number"}, `${written(corners[i], 1)} to ${written(corners[i + 2], 1)}`),
    el("br"),
  ];
  const shown = el("output", {id: "iou", class: "number"}, written(iou, 3));
  numbers.replaceChildren(...line("x", "width", 0), ...line("y", "height", 1), "IoU with the true box: ", shown);
}

const sliders = NAMES.map((name, i) => {
  const change = (value) => {
    deltas[i] = value;
    update();
  };
  return numberSlider(name, -1, 1, 0.01, 0, change, 3);
});
const set = (values) => () => {
  deltas = [...values];
  sliders.forEach((each, i) => each.set(deltas[i]));
  update();
};
root.append(
  drawing,
  ...sliders.map((each) => each.row),
  el(
    "div",
    {class: "row"},
    button("Zero", "Zero: set all deltas to zero", set([0, 0, 0, 0])),
    button("The net's", "The net's: set the deltas that the net gives for this anchor", set(data.net)),
    button("The target", "The target: set the deltas from the anchor to the true box", set(data.target)),
  ),
  numbers,
  quiet("Orange, dashed: the anchor. Blue: the anchor moved by the deltas. Green: the true box."),
);
update();
