// A training, frame by frame: loss, filters, photos with boxes.

const film = JSON.parse(document.getElementById("film").textContent);
const COLOURS = ["#e6194b", "#2f9e44", "#4363d8", "#d96a00", "#911eb4", "#008080", "#9a6324", "#808000", "#c026d3", "#5a67d8"];
// In pixels, so that texts can be read on a phone.
const WIDTH = Math.min(Math.max(document.querySelector("main").clientWidth - 32, 320), 1000);
const LEFT = 56, RIGHT = 16, HEAD = 24, FOOT = 40, MOST_POINTS = 400;
/** The panels of the plot and their heights. The rules of axes, means and marks are those of `train --plot`. */
const HEIGHTS = {loss: 240, score: 140, "learning rate": 56};
const AVERAGE_PRECISIONS = ["voc_ap", "coco_ap"];
const MEANS = 25, DECADE = 10;
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

/** The values of a running mean, 5 or 1, 2 or 5 times a power of ten; 1 for none. */
function windowOf(points) {
  const most = Math.floor(points.length / MEANS);
  const power = 10 ** (String(most).length - 1);
  return most < 5 ? 1 : power * [5, 2, 1].find((times) => times * power <= most);
}

/** The mean of the last values at each point. */
function runningMean(points, window) {
  let sum = 0;
  return points.map(([iteration, value], i) => {
    sum += value - (i >= window ? points[i - window][1] : 0);
    return [iteration, sum / Math.min(i + 1, window)];
  });
}

/** Some of the points, the last one included. */
function thinned(points) {
  const each = Math.ceil(points.length / MOST_POINTS);
  return points.filter((_, i) => (points.length - 1 - i) % each === 0);
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
  return found.map(([name, values]) => {
    const window = windowOf(values);
    const points = window > 1 ? thinned(runningMean(values, window)) : values;
    return {name, of: "", window, points, single: window > 1 ? meansOf(values) : [], valueAt: valueAt(name)};
  });
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
      return {name, of, window: 1, points, single: [], valueAt};
    });
  });
}

const curves = [...trainCurves(), ...testCurves()].map((curve, i) => ({
  ...curve,
  panel: film.accuracies.includes(curve.name) ? "score" : "loss",
  best: AVERAGE_PRECISIONS.includes(curve.name) ? curve.points.reduce((a, b) => (b[1] > a[1] ? b : a), curve.points[0]) : null,
  style: `--curve: ${curve.name === "the loss" ? "var(--ink)" : COLOURS[i % COLOURS.length]}`,
}));
const rates = film.frames.map((frame) => [frame.iteration, frame.lr]);
const rateCurve = {name: "learning rate", of: "", panel: "learning rate", points: rates, single: [], window: 1, style: "--curve: var(--ink)"};

/** Round numbers from low to high, about `count` of them: 1, 2 or 5 times a power of ten apart. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  const [first, end] = [Math.floor(low / step + 1e-6), Math.ceil(high / step - 1e-6)];
  return Array.from({length: end - first + 1}, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** An axis that ends at round numbers: its ticks, and how far up a value is. */
function linearAxis(low, high, count) {
  const marks = ticks(low, high > low ? high : low + (Math.abs(low) || 1), count);
  return {marks, up: (value) => (value - marks[0]) / (marks.at(-1) - marks[0])};
}

/** A logarithmic axis of at most `most` ticks: powers of ten and, if they fit, 2 and 5 times those. */
function logAxis(low, high, most) {
  const [first, end] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = Array.from({length: end - first + 1}, (_, i) => first + i);
  const choices = [[1, [1, 2, 5]], ...powers.map((_, i) => [i + 1, [1]])];
  const made = choices.map(([every, times]) =>
    powers
      .filter((i) => i % every === 0)
      .flatMap((i) => times.map((k) => Number((k * 10 ** i).toPrecision(3))))
      .filter((tick) => tick >= low * 0.999 && tick <= high * 1.001),
  );
  const marks = made.find((some) => some.length <= most);
  return {marks, isLog: true, up: (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low)};
}

function percentile(values, share) {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted[Math.round(share * (sorted.length - 1))];
}

/** The axis of a panel's curves. A few extreme values may lie beyond its ends. */
function axisOf(panel, own) {
  const columns = own.flatMap(({points, single}) => [points, single]).filter((points) => points.length);
  const values = columns.map((points) => points.map((point) => point[1]));
  const low = Math.min(0, ...values.map((column) => percentile(column, 0.01)));
  const high = Math.max(...values.map((column) => percentile(column, 0.99)));
  if (panel === "score") {
    const least = Math.min(...values.map((column) => percentile(column, 0.01)));
    return linearAxis(least > 0.5 && high <= 1 ? least : low, Math.max(high, 1), 5);
  }
  const isRate = panel === "learning rate";
  const positive = values.flat().filter((value) => value > 0);
  const few = percentile(positive, isRate ? 0.2 : 0.01); // a rate that ends at 0 has a linear axis
  if (low === 0 && high > DECADE * few) return logAxis(percentile(positive, 0.01), high, isRate ? 3 : 8);
  return linearAxis(low, high || 1, isRate ? 2 : 5);
}

const across = (iteration) => LEFT + (iteration / last) * (WIDTH - LEFT - RIGHT);

/** The panels from top to bottom, with their axes and places. */
let bottom = 0;
const panels = Object.entries(HEIGHTS).flatMap(([name, height]) => {
  const own = [...curves, rateCurve].filter(({panel, points}) => panel === name && points.length);
  if (!own.length) return [];
  const top = bottom + HEAD;
  bottom = top + height;
  const axis = axisOf(name, own);
  const down = (value) => top + (1 - Math.min(Math.max(axis.up(value), 0), 1)) * height;
  return [{name, own, axis, down, top, bottom}];
});
const HEIGHT = bottom + FOOT;

function drawPanel({name, own, axis, down, top}) {
  const window = Math.max(...own.map((curve) => curve.window));
  const mean = window > 1 ? `; bold: mean of the last ${window}` : "";
  const dots = own.some(({of}) => of) ? "; dots: tests" : "";
  return [
    svg("text", {class: "title", x: LEFT, y: top - 8}, `${name}${axis.isLog ? ", log scale" : ""}${mean}${dots}`),
    axis.marks.map((value) => [
      svg("line", {class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: down(value), y2: down(value)}),
      svg("text", {x: LEFT - 6, y: down(value) + 4, "text-anchor": "end"}, short(value)),
    ]),
    own.map(({points, single, of, best, style}) => {
      const places = (values) => values.map(([iteration, value]) => [across(iteration), down(value)]);
      const thin = single.length ? svg("polyline", {class: "single", points: places(single).join(" ")}) : null;
      const dots = of ? places(points).map(([cx, cy]) => svg("circle", {cx, cy, r: 3.5})) : null;
      const ring = best && svg("circle", {class: "best", cx: across(best[0]), cy: down(best[1]), r: 8});
      return svg("g", {class: "curve", style}, thin, svg("polyline", {points: places(points).join(" ")}), dots, ring);
    }),
  ];
}

const plotLabel = `${panels.map(({name}) => name).join(", ")} by iteration`;
const marker = svg("line", {class: "marker", y1: HEAD, y2: bottom});
const plot = svg(
  "svg",
  {class: "curves", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": plotLabel, onclick: goThere},
  ticks(0, last, 5)
    .filter((value) => value <= last && Number.isInteger(value))
    .map((value) => [
      panels.map(({top, bottom}) => svg("line", {class: "axis", x1: across(value), x2: across(value), y1: top, y2: bottom + 4})),
      svg("text", {x: across(value), y: bottom + 18, "text-anchor": "middle"}, value),
    ]),
  svg("text", {class: "title", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle"}, "iteration"),
  panels.map(drawPanel),
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
    ...curves.map(({name, of, best, style, valueAt}) => {
      const key = el("i", {class: of ? "key curve test" : "key curve", style});
      const [value, text] = [valueAt(frame), of && !best ? `${name} of ${of}` : name];
      const number = el("span", {class: "mono"}, value === null ? "" : short(value));
      return el("span", {}, key, `${text} `, number, best ? `, best ${short(best[1])} at ${best[0]}` : "");
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
const latest = curves.some(({of}) => of) ? "; of tests, the latest" : "";
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
  el("section", {}, el("h2", {}, "The training"), plot, legend, quiet(legendText)),
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
