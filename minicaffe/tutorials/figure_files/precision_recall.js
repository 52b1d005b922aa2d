// One class's detections on an image: those above a score are counted, and the curve of precision over recall grows with them.

const [WIDTH, HEIGHT] = data.size;
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 312, 14, 218];
const total = data.truth.length;

let level = data.levels[0];
let threshold = 0.5;
let isEleven = false;

const rectOf = ([x1, y1, x2, y2], attributes) =>
  svg("rect", {x: x1, y: y1, width: x2 - x1 + 1, height: y2 - y1 + 1, fill: "none", ...attributes});
const truth = data.truth.map((box) => [
  rectOf(box, {stroke: "#000", "stroke-width": 5}),
  rectOf(box, {stroke: "#fff", "stroke-width": 3, "stroke-dasharray": "6 4"}),
]);
const found = svg("g");
const photo = svg(
  "svg",
  {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img"},
  svg("image", {href: data.photo, width: WIDTH, height: HEIGHT}),
  truth,
  found,
);

const x = (recall) => LEFT + (RIGHT - LEFT) * recall;
const y = (precision) => BOTTOM + (TOP - BOTTOM) * precision;
const curve = svg("g");
const axes = svg(
  "g",
  {},
  svg("path", {d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}`, fill: "none", stroke: "var(--quiet)"}),
  [0, 0.5, 1].map((value) => [
    svg("text", {x: x(value), y: BOTTOM + 16, "text-anchor": "middle"}, String(value)),
    svg("text", {x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, String(value)),
  ]),
  svg("text", {x: x(0.5), y: BOTTOM + 32, "text-anchor": "middle"}, "recall"),
  svg("text", {x: 12, y: y(0.5), "text-anchor": "middle", transform: `rotate(-90 12 ${y(0.5)})`}, "precision"),
);
const plot = svg("svg", {viewBox: `0 0 ${RIGHT + 8} ${BOTTOM + 38}`, role: "img"}, curve, axes);

const counts = el("p", {class: "formula", "aria-live": "polite"});
const area = el("p", {class: "formula"});
const slide = numberSlider("Least score", 0, 1, 0.01, threshold, (now) => {
  threshold = now;
  update();
});

/** The best precision at a recall or beyond: 0 where the curve does not reach. */
const bestFrom = (recall) => Math.max(0, ...level.precision.filter((_, i) => level.recall[i] >= recall - 1e-9));

/** The curve's steps under the best precision, as a path. */
function steps() {
  let [path, before] = [`M${x(0)} ${y(0)}`, 0];
  level.recall.forEach((recall) => {
    if (recall <= before) return;
    path += `V${y(bestFrom(recall))}H${x(recall)}`;
    before = recall;
  });
  return `${path}V${y(0)}Z`;
}

function update() {
  const count = shownNow();
  const right = level.hits.slice(0, count).filter(Boolean).length;
  found.replaceChildren(
    ...data.boxes.slice(0, count).flatMap((box, i) => [
      rectOf(box, {stroke: "#000", "stroke-width": i === count - 1 ? 7 : 4.5}),
      rectOf(box, {stroke: level.hits[i] ? "#2fe28c" : "#ff5a5a", "stroke-width": i === count - 1 ? 5 : 2.5}),
    ]),
  );
  photo.setAttribute(
    "aria-label",
    `The image with ${total} true boxes, dashed, ${right} true positives, green, and ${count - right} false positives, red`,
  );
  const points = level.recall.slice(0, count).map((recall, i) => [x(recall), y(level.precision[i])]);
  curve.replaceChildren(
    svg("path", {d: steps(), fill: "var(--two)", opacity: isEleven ? 0.08 : 0.18}),
    ...(isEleven ? Array.from({length: 11}, (_, k) => k / 10) : []).map((recall) =>
      svg("path", {d: `M${x(recall)} ${y(0)}V${y(bestFrom(recall))}`, stroke: "var(--two)", "stroke-width": 4, opacity: 0.6}),
    ),
    svg("polyline", {points: points.join(" "), fill: "none", stroke: "var(--ink)", "stroke-width": 1.5}),
    ...points.map(([cx, cy], i) =>
      svg("circle", {cx, cy, r: i === count - 1 ? 6 : 3.5, fill: level.hits[i] ? "var(--good)" : "var(--bad)"}),
    ),
  );
  plot.setAttribute("aria-label", `The curve of precision over recall, ${count} of ${data.scores.length} detections`);
  const precision = count ? right / count : null;
  counts.replaceChildren(
    `${count} detections, ${right} true positives, ${count - right} false positives, ${total - right} missed. `,
    "precision ",
    count ? `${right} / ${count} = ` : "",
    el("output", {id: "precision", class: "number"}, count ? written(precision, 3) : "none"),
    `; recall ${right} / ${total} = `,
    el("output", {id: "recall", class: "number"}, written(right / total, 3)),
  );
  area.replaceChildren(
    isEleven ? "AP (VOC 2007) = mean of the eleven bars = " : "AP = blue area = ",
    el("output", {id: "ap", class: "number"}, written(level.areas[Number(isEleven)], 3)),
    " over all detections",
  );
  pagerEnds(back, on, count === 0, count === data.scores.length);
  slide.set(threshold);
}

/** Move the threshold so that this many detections are above it. Scores are finer than the slider: it may lie between two steps. */
function show(count) {
  threshold = count === 0 ? 1 : data.scores[count - 1];
  if (count === 0 && data.scores[0] >= 1) threshold = 1.01;
  update();
}
const shownNow = () => data.scores.filter((score) => score >= threshold).length;
const back = button("−1", "One detection fewer", () => show(shownNow() - 1));
const on = button("+1", "One detection more", () => show(shownNow() + 1));

root.append(
  el("div", {class: "side"}, photo, plot),
  el("div", {class: "row"}, slide.row, el("span", {class: "row"}, back, on)),
  el(
    "div",
    {class: "row"},
    choiceOf("Least IoU", data.levels.map(({iou}, i) => [i, `IoU ≥ ${iou}`]), 0, (i) => {
      level = data.levels[i];
      update();
    }),
    choiceOf("Average precision", [[0, "area (VOC from 2010)"], [1, "eleven points (VOC 2007)"]], 0, (value) => {
      isEleven = value === "1";
      update();
    }),
  ),
  counts,
  area,
  el("p", {class: "quiet"}, "White, dashed: true boxes. Green: true positives. Red: false positives. The latest detection is thick."),
);
update();
