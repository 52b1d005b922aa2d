// Trainings side by side: a slider over the frames shows what each net finds, and where its loss is.

const SIZE = [720, 230];
const COLOURS = ["var(--one)", "var(--two)"];
const {runs, size, classes} = data;
const frames = runs[0].frames;
const longest = Math.max(...runs.map((run) => run.losses.length));
const highest = Math.max(...runs.flatMap((run) => run.losses));
const state = {frame: frames.length - 1};

const place = (iteration, loss) => [44 + (iteration / longest) * (SIZE[0] - 54), 8 + (1 - loss / highest) * (SIZE[1] - 34)];
const curve = ({losses}, k) =>
  svg("polyline", {
    points: losses.map((loss, i) => place(i + 1, loss).join(",")).join(" "),
    fill: "none",
    stroke: COLOURS[k],
    "stroke-width": 2,
  });
const cursor = svg("line", {stroke: "var(--ink)", "stroke-dasharray": "3 3", y1: 4, y2: SIZE[1] - 22});
const axis = (x, y, text, anchor = "middle") => svg("text", {x, y, "text-anchor": anchor}, text);
const plot = svg(
  "svg",
  {viewBox: `0 0 ${SIZE.join(" ")}`, role: "img", "aria-label": "The losses of the trainings, smoothed"},
  axis(38, 16, written(highest, 1), "end"),
  axis(38, SIZE[1] - 24, "0", "end"),
  axis(44, SIZE[1] - 8, "0"),
  axis(SIZE[0] - 10, SIZE[1] - 8, String(longest), "end"),
  axis(SIZE[0] / 2, SIZE[1] - 8, "iteration"),
  runs.map(curve),
  cursor,
);

const views = runs.map((run, k) => {
  const boxes = svg("g");
  const says = el("p", {class: "says"});
  const drawing = svg("svg", {viewBox: `0 0 ${size.join(" ")}`, role: "img"}, svg("image", {href: data.picture, width: size[0], height: size[1]}), boxes);
  const title = el("h2", {}, el("i", {class: "swatch", style: `background:${COLOURS[k]}`}), ` ${run.name}`);
  return {boxes, says, drawing, run, section: el("section", {}, title, drawing, says)};
});

function update() {
  const {iteration} = frames[state.frame];
  const [x] = place(iteration, 0);
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  for (const {boxes, says, drawing, run} of views) {
    const frame = run.frames[state.frame];
    boxes.replaceChildren(
      ...frame.boxes.map(([x1, y1, x2, y2], i) => [
        svg("rect", {x: x1, y: y1, width: x2 - x1, height: y2 - y1, fill: "none", stroke: "#000", "stroke-width": 4}),
        svg("rect", {x: x1, y: y1, width: x2 - x1, height: y2 - y1, fill: "none", stroke: "#ffe14d", "stroke-width": 2}),
        svg("text", {x: x1 + 3, y: y1 + 15, class: "label"}, `${classes[frame.classes[i]]} ${written(frame.scores[i])}`),
      ]).flat(),
    );
    const loss = iteration ? written(run.losses[iteration - 1], 3) : "none yet";
    says.replaceChildren("loss ", el("span", {class: "number"}, loss), ", average precision ", el("output", {class: "number"}, written(frame.ap)));
    drawing.setAttribute("aria-label", `${run.name} after ${iteration} iterations: ${frame.boxes.length} boxes`);
  }
}

const frameSlider = numberSlider(
  "Iterations",
  0,
  frames.length - 1,
  1,
  state.frame,
  (value) => {
    state.frame = value;
    update();
  },
  (value) => String(frames[value].iteration),
);

root.append(
  frameSlider.row,
  el("div", {class: "pair"}, views.map((view) => view.section)),
  plot,
  el("p", {class: "quiet"}, `Boxes with a score of at least ${data.threshold}. The average precision is the mean over the classes, on ${data.scenes} other scenes.`),
);
update();
