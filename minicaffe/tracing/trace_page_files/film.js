// A training, frame by frame: loss, filters, photos with boxes.

const film = JSON.parse(document.getElementById("film").textContent);
const COLOURS = ["#e6194b", "#2f9e44", "#4363d8", "#d96a00", "#911eb4", "#008080", "#9a6324", "#808000", "#c026d3", "#5a67d8"];
// In pixels, so that texts can be read on a phone.
const WIDTH = Math.min(Math.max(document.querySelector("main").clientWidth - 32, 320), 1000);
const HEIGHT = 260, LEFT = 56, BOTTOM = 24, TOP = 8, MOST_POINTS = 150;
const state = {frame: film.frames.length - 1, playing: null, proposals: true, least: 0.3};
const last = Math.max(1, film.frames.at(-1).iteration);

const classes = [...new Set(film.frames.flatMap((frame) => frame.photos.flatMap((seen) => seen.detections.map((one) => one.name))))].sort();
const colour = (name) => COLOURS[classes.indexOf(name) % COLOURS.length];
const short = (value) => String(Number(value.toPrecision(4)));

/** The values of all frames by name, as [iteration, value]. entries: of a frame, [name, iteration, value or null] each. */
function pointsByName(entries) {
  const points = new Map();
  for (const [name, iteration, value] of film.frames.flatMap(entries)) {
    if (!points.has(name)) points.set(name, []);
    if (value !== null) points.get(name).push([iteration, value]);
  }
  return [...points];
}

/** Means of runs of iterations. */
function meansOf(points) {
  const each = Math.ceil(points.length / MOST_POINTS);
  const runs = Array.from({length: Math.ceil(points.length / each)}, (_, i) => points.slice(i * each, (i + 1) * each));
  return runs.map((run) => [0, 1].map((k) => run.reduce((sum, point) => sum + point[k], 0) / run.length));
}

/** The curves of the train net's outputs, the loss first, with the means at each frame. */
function trainCurves() {
  const found = pointsByName(({losses, iterations}) =>
    Object.entries(losses).flatMap(([name, values]) => values.map((value, i) => [name, iterations[i], value])),
  );
  const [whole, ...outputs] = found.map(([name, points]) => [name, JSON.stringify(points)]);
  if (outputs.some(([, text]) => text === whole[1])) found.shift(); // a net with one loss: the output is the loss
  const valueAt = (name) => ({losses}) => {
    const values = (losses[name] || []).filter((value) => value !== null);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  };
  return found.map(([name, points]) => ({name, of: "", points: meansOf(points), valueAt: valueAt(name)}));
}

/** The curves of the test nets' outputs, a point for each test, with the latest test at each frame. */
function testCurves() {
  const nets = [...new Set(film.frames.flatMap(({tests}) => tests.map(({net}) => net)))].sort((a, b) => a - b);
  return nets.flatMap((number) => {
    const of = nets.length > 1 ? `test net ${number}` : "the test net";
    const found = pointsByName(({tests}) =>
      tests
        .filter(({net}) => net === number)
        .flatMap(({iteration, outputs}) => Object.entries(outputs).map(([name, value]) => [name, iteration, value])),
    );
    return found.map(([name, points]) => {
      const valueAt = (frame) => points.findLast(([iteration]) => iteration <= frame.iteration)?.[1] ?? null;
      return {name, of, points, valueAt};
    });
  });
}

const curves = [...trainCurves(), ...testCurves()].map((curve, i) => ({
  ...curve,
  isAccuracy: film.accuracies.includes(curve.name),
  style: `--curve: ${COLOURS[i % COLOURS.length]}`,
}));
const accuracies = curves.filter(({isAccuracy}) => isAccuracy);
const RIGHT = accuracies.length ? 44 : 12;

/** Round numbers from low to high, about `count` of them: 1, 2 or 5 times a power of ten apart. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  const [first, end] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  return Array.from({length: end - first + 1}, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** The axis of these curves, which ends at round numbers: its ticks, and the height of a value. */
function axisOf(own, most) {
  const values = own.flatMap(({points}) => points.map((point) => point[1]));
  const marks = ticks(Math.min(0, ...values), Math.max(most, ...values), 5);
  const down = (value) => TOP + ((marks.at(-1) - value) / (marks.at(-1) - marks[0])) * (HEIGHT - BOTTOM - TOP);
  return {marks, down};
}

const lossAxis = axisOf(curves.filter(({isAccuracy}) => !isAccuracy), 1e-9);
const accuracyAxis = axisOf(accuracies, 1);
const across = (iteration) => LEFT + (iteration / last) * (WIDTH - LEFT - RIGHT);

const plotLabel = `losses${accuracies.length ? " and, on an axis at the right, accuracies" : ""} by iteration`;
const marker = svg("line", {class: "marker", y1: 0, y2: HEIGHT - BOTTOM});
const plot = svg(
  "svg",
  {class: "curves", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": plotLabel, onclick: goThere},
  lossAxis.marks.map((value) => [
    svg("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: lossAxis.down(value), y2: lossAxis.down(value)}),
    svg("text", {x: LEFT - 6, y: lossAxis.down(value) + 4, "text-anchor": "end"}, short(value)),
  ]),
  (accuracies.length ? accuracyAxis.marks : []).map((value) => [
    svg("text", {class: "accuracy-mark", x: WIDTH - RIGHT + 8, y: accuracyAxis.down(value) + 4}, short(value)),
  ]),
  ticks(0, last, 5)
    .filter((value) => value <= last && Number.isInteger(value))
    .map((value) => [
      svg("line", {class: "axis", x1: across(value), x2: across(value), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 5}),
      svg("text", {x: across(value), y: HEIGHT - 4, "text-anchor": "middle"}, value),
    ]),
  curves.map(({points, of, isAccuracy, style}) => {
    const {down} = isAccuracy ? accuracyAxis : lossAxis;
    const places = points.map(([iteration, value]) => [across(iteration), down(value)]);
    const dots = of ? places.map(([cx, cy]) => svg("circle", {cx, cy, r: 3.5})) : null;
    const line = svg("polyline", {points: places.join(" "), class: isAccuracy ? "accuracy" : null});
    return svg("g", {class: "curve", style}, line, dots);
  }),
  marker,
);

/** The frame nearest to a click on the curves. */
function goThere(event) {
  const box = plot.getBoundingClientRect();
  const iteration = ((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT)) * last;
  const apart = film.frames.map((frame) => Math.abs(frame.iteration - iteration));
  goTo(apart.indexOf(Math.min(...apart)));
}

const legend = el("p", {class: "row"});
const where = el("strong", {role: "status"});
const range = el("input", {type: "range", min: 0, max: film.frames.length - 1, "aria-label": "frame", oninput: () => goTo(Number(range.value))});
const toggle = () => (state.playing ? stop() : start());
const play = button("Play", "Play the film", toggle);
const filters = el("img", {class: "filters", alt: ""});
const filterText = el("p", {class: "quiet"});
const least = el("input", {type: "range", min: 0, max: 1, step: 0.05, value: state.least, "aria-label": "least score shown"});
const leastText = el("span", {class: "mono"});
least.addEventListener("input", () => {
  state.least = Number(least.value);
  draw();
});
const proposals = el("input", {type: "checkbox", checked: true, onchange: () => {
  state.proposals = proposals.checked;
  draw();
}});

const photos = film.photos.map((photo) => {
  const boxes = svg("svg", {viewBox: `0 0 ${photo.width} ${photo.height}`, preserveAspectRatio: "none", "aria-hidden": "true"});
  const text = el("div", {class: "found"});
  const picture = photo.picture && el("img", {alt: photo.name, src: `data:image/jpeg;base64,${photo.picture}`});
  const title = el("figcaption", {class: "quiet"}, photo.name, photo.label && `: ${photo.label}`);
  return {photo, boxes, text, figure: el("figure", {}, el("div", {}, picture || null, boxes), title, text)};
});

/** The values of the curves at a frame. */
function drawLegend(frame) {
  legend.replaceChildren(
    ...curves.map(({name, of, isAccuracy, style, valueAt}) => {
      const key = el("i", {class: ["key curve", isAccuracy && "accuracy", of && "test"].filter(Boolean).join(" "), style});
      const [value, text] = [valueAt(frame), of ? `${name} of ${of}` : name];
      const number = el("span", {class: "mono"}, value === null ? "" : short(value));
      return el("span", {}, key, text, isAccuracy ? " (right) " : " ", number);
    }),
  );
}

function rectangle(box, kind, stroke) {
  const [x1, y1, x2, y2] = box;
  return svg("rect", {class: kind, x: x1, y: y1, width: Math.max(0, x2 - x1 + 1), height: Math.max(0, y2 - y1 + 1), stroke});
}

function drawPhoto({photo, boxes, text}, seen) {
  const {proposals, detections, scores, note} = seen || {proposals: [], detections: [], scores: [], note: ""};
  const found = detections.filter((one) => one.score >= state.least);
  boxes.replaceChildren(
    ...(state.proposals ? proposals.map((box) => rectangle(box, "proposal")) : []),
    ...found.slice().reverse().map((one) => rectangle(one.box, "detection", colour(one.name))),
  );
  const lines = found.map((one) => {
    const key = el("i", {class: "key"});
    key.style.setProperty("--stroke", colour(one.name));
    return el("li", {}, key, `${one.name} ${one.score.toFixed(2)}`);
  });
  const bars = scores.map((one) => {
    const bar = el("span", {class: one.name === photo.label ? "bar true" : "bar"});
    bar.style.width = `${100 * one.score}%`;
    return el("li", {}, `${one.name} ${one.score.toFixed(2)}`, bar);
  });
  text.replaceChildren(el("ul", {role: "list", class: lines.length ? "row" : null}, lines, bars), note ? el("p", {}, note) : "");
}

function draw() {
  const frame = film.frames[state.frame];
  where.textContent = `iteration ${frame.iteration} of ${film.frames.at(-1).iteration}`;
  range.value = state.frame;
  range.setAttribute("aria-valuetext", where.textContent);
  rate.textContent = `learning rate ${short(frame.lr)}`;
  marker.setAttribute("x1", across(frame.iteration));
  marker.setAttribute("x2", across(frame.iteration));
  drawLegend(frame);
  if (frame.filters) {
    filters.src = `data:image/png;base64,${frame.filters.png}`;
    filters.alt = filterText.textContent = frame.filters.text;
  }
  leastText.textContent = state.least.toFixed(2);
  photos.forEach((one, i) => drawPhoto(one, frame.photos[i]));
}

function go(frame) {
  state.frame = Math.min(Math.max(frame, 0), film.frames.length - 1);
  draw();
}

/** A frame that the reader chooses, which ends the play. */
function goTo(frame) {
  stop();
  go(frame);
}

function stop() {
  clearInterval(state.playing);
  state.playing = null;
  sayPlay("Play");
}

function sayPlay(text) {
  play.textContent = text;
  for (const name of ["aria-label", "title"]) play.setAttribute(name, `${text} the film`);
}

function start() {
  if (state.frame === film.frames.length - 1) go(0);
  sayPlay("Pause");
  state.playing = setInterval(() => (state.frame < film.frames.length - 1 ? go(state.frame + 1) : stop()), 300);
}

const rate = quiet("");
const latest = curves.some(({of}) => of) ? "; of test nets, the latest test" : "";
const legendText = `means since the frame before${latest}`;
const isInFrames = (boxes) => film.frames.some((frame) => frame.photos.some((seen) => seen[boxes].length));
const proposes = isInFrames("proposals");
const detects = proposes || isInFrames("detections");
const opener = el("button", {type: "button", "aria-label": "Keys", title: "Keys (?)"}, "?");
document.querySelector("main").append(
  el("div", {class: "row head"}, el("h1", {}, film.net || "A training"), opener),
  el(
    "div",
    {class: "controls row"},
    play,
    button("◀", "the frame before", () => goTo(state.frame - 1)),
    button("▶", "the next frame", () => goTo(state.frame + 1)),
    range,
    where,
    rate,
  ),
  el("section", {}, el("h2", {}, accuracies.length ? "Losses and accuracy" : "Losses"), plot, legend, quiet(legendText)),
  film.photos.length
    ? el(
        "section",
        {},
        el("h2", {}, "What the net sees"),
        detects
          ? el(
              "div",
              {class: "row"},
              proposes ? el("label", {class: "row"}, proposals, "proposals (thin)") : "",
              el("label", {class: "row"}, "least score", least, leastText),
            )
          : "",
        el("div", {class: detects ? "photos" : "photos items"}, photos.map((one) => one.figure)),
      )
    : "",
  film.frames.some((frame) => frame.filters) ? el("section", {}, el("h2", {}, "First filters"), filters, filterText) : "",
);
pressKeys({
  ArrowLeft: () => goTo(state.frame - 1),
  ArrowRight: () => goTo(state.frame + 1),
  Home: () => goTo(0),
  End: () => goTo(film.frames.length - 1),
  " ": toggle,
});
offerKeys(opener, () => ({
  Anywhere: [
    ["← →", "the frame before, after"],
    ["Home End", "the first, the last frame"],
    ["Space", "play, pause"],
    ["?", "this list"],
  ],
}));
draw();
document.documentElement.dataset.ready = "";
