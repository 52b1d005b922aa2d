// Non-maximum suppression, one box a step: which box is kept, which is suppressed, and by which kept box.

const {boxes, scores} = data; // best first
let threshold = data.threshold;
let step = 0;
let fates = [];

const layer = svg("g");
const drawing = onPhoto("The scene with the boxes decided so far", layer);
const told = el("p", {class: "formula", "aria-live": "polite"});
const counts = el("p", {});

/** What becomes of each box: {by, most}, numbers of kept boxes or -1: the one that suppresses it, the one it overlaps most. */
function decide() {
  const kept = [];
  return boxes.map((corners, i) => {
    const ious = kept.map((k) => overlapOf(corners, boxes[k]).iou);
    const by = kept[ious.findIndex((iou) => iou > threshold)] ?? -1;
    const greatest = Math.max(0, ...ious);
    const most = greatest ? kept[ious.indexOf(greatest)] : -1;
    if (by < 0) kept.push(i);
    return {by, most};
  });
}

function sentence(i) {
  const {by, most} = fates[i];
  const start = `Box ${i}, score ${written(scores[i], 4)}: `;
  const other = by < 0 ? most : by;
  if (other < 0) return i ? `${start}no kept box overlaps it. It is kept.` : `${start}the best box is always kept.`;
  const {intersection, union, iou} = overlapOf(boxes[i], boxes[other]);
  const quotient = `${written(intersection, 0)} / ${written(union, 0)} = ${written(iou, 3)}`;
  return by < 0
    ? `${start}most overlap with kept box ${most}: IoU ${quotient}, not more than ${written(threshold)}. It is kept.`
    : `${start}IoU with kept box ${by} = ${quotient}, more than ${written(threshold)}. Box ${by} suppresses it.`;
}

function update() {
  fates = decide();
  const now = step - 1;
  const other = now < 0 ? -1 : fates[now].by;
  const done = fates.slice(0, step);
  layer.replaceChildren(
    ...(step ? boxes.slice(0, step) : boxes).map((corners, i) => {
      const kind = i === now || i === other ? "thick" : "";
      const fate = !step ? "undecided thin" : done[i].by < 0 ? "good" : `bad dashed ${kind ? "" : "faint"}`;
      return placed(svg("rect", {class: `outline ${fate} ${kind}`}), corners);
    }),
  );
  const kept = done.flatMap((fate, i) => (fate.by < 0 ? [i] : []));
  told.textContent = step ? sentence(now) : `${boxes.length} boxes, numbered from the best score. Move the step.`;
  counts.replaceChildren(
    "kept: ",
    el("output", {id: "kept", class: "number"}, kept.join(", ") || "none yet"),
    ` (${kept.length}); suppressed: ${step - kept.length}; to come: ${boxes.length - step}`,
  );
}

function decideUntil(wanted) {
  step = clamp(wanted, 0, boxes.length);
  steps.set(step);
  update();
}

const steps = numberSlider("step", 0, boxes.length, 1, 0, decideUntil, 0);
const thresholds = numberSlider("threshold", 0.05, 0.95, 0.05, threshold, (value) => {
  threshold = value;
  update();
});
root.append(
  drawing,
  steps.row,
  thresholds.row,
  el(
    "div",
    {class: "row"},
    button("Back", "Back: one box", () => decideUntil(step - 1)),
    button("Next", "Next: decide one box", () => decideUntil(step + 1)),
    button("All", "All: decide every box", () => decideUntil(boxes.length)),
  ),
  told,
  counts,
  quiet("Green: kept. Red, dashed: suppressed. The thick boxes are the one of this step, and the one that suppresses it."),
);
update();
