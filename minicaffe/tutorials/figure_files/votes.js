// One roi to drag over a photo, and the votes of R-FCN's score maps: how much each part's map holds in each bin of the roi.

const {classes, group, scale} = data;
const [HEIGHT, WIDTH] = data.shape;
const PLANE = HEIGHT * WIDTH;
const SIDES = ["left", "centre", "right"];
/** The names of the parts, and their initials; numbers for other grids than 3 x 3. */
const PARTS = group === 3 ? ["top", "middle", "bottom"].flatMap((v) => SIDES.map((h) => `${v} ${h}`)) : null;
const partName = (part) => (PARTS ? PARTS[part] : `part ${part}`);
const initials = (part) => (PARTS ? PARTS[part].replace(/(\w)\w* (\w)\w*/, "$1$2").toUpperCase() : `${part}`);
const SHORT = Array.from({length: group ** 2}, (_, part) => initials(part));
const MOST = 12; // a vote of this size has the full colour

/** The score maps, in parts of 256. */
const bytes = Uint8Array.from(atob(data.maps), (letter) => letter.charCodeAt(0));
const maps = Float32Array.from(new Int16Array(bytes.buffer), (v) => v / 256);
const planeOf = (k, part) => {
  const first = (k * group ** 2 + part) * PLANE;
  return Object.assign(maps.subarray(first, first + PLANE), {shape: [1, HEIGHT, WIDTH]});
};

const asked = {corners: [...data.roi], k: data.chosen, part: 0};
const settings = {kind: "psroi_bins", spatial_scale: scale, pooled: [group, group], group, item: 0, cycle: 1};
const colour = (value) => {
  const share = Math.round(45 * Math.min(Math.abs(value) / MOST, 1));
  return `color-mix(in srgb, var(--${value < 0 ? "two" : "one"}) ${share}%, var(--paper))`;
};

const size = [WIDTH / scale, HEIGHT / scale];
const drawing = svg("svg", {viewBox: `0 0 ${size.join(" ")}`, role: "group", "aria-label": "The photo and the roi"});
const whole = {width: size[0], height: size[1]};
const overlay = svg("image", {...whole, opacity: 0.6, preserveAspectRatio: "none"});
const lines = svg("g", {class: "edges"});
const own = svg("rect", {class: "own"});
const bounds = size.map((v) => v - 1);
const drag = dragBox(drawing, "The roi", "roi", asked.corners, bounds, (corners) => set({corners}), 3 / scale);
const photo = svg("image", {...whole, href: data.photo});
drawing.append(photo, overlay, lines, own, drag.group);

/** Show the map of a part over the photo, which turns grey: orange above 0, blue below. */
function paintMap(k, part) {
  for (const each of [overlay, own]) each.style.display = part < 0 ? "none" : "";
  photo.style.filter = part < 0 ? "" : "grayscale(1)";
  if (part < 0) return;
  const canvas = el("canvas", {width: WIDTH, height: HEIGHT});
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  planeOf(k, part).forEach((value, i) => {
    context.fillStyle = style.getPropertyValue(value < 0 ? "--map-below" : "--map-above");
    context.globalAlpha = Math.min(Math.abs(value) / MOST, 1);
    context.fillRect(i % WIDTH, Math.floor(i / WIDTH), 1, 1);
  });
  overlay.setAttribute("href", canvas.toDataURL());
}

/** The mean of each part's map over each bin: [part][bin]. */
function meansOf(k, arrays) {
  const places = Array.from({length: group ** 2}, (_, b) => [Math.floor(b / group), b % group]);
  return places.map((_, part) => {
    const own = {...arrays, map: planeOf(k, part)};
    return places.map(([ph, pw]) => readBin(settings, own, 0, 0, ph, pw).value);
  });
}

const votesOf = (k, arrays) =>
  Array.from({length: group ** 2}, (_, b) => {
    const own = {...arrays, map: planeOf(k, b)};
    return readBin(settings, own, 0, 0, Math.floor(b / group), b % group).value;
  });

const mean = (values) => values.reduce((sum, v) => sum + v) / values.length;

const heat = el("table", {class: "heat"});
const scores = el("table", {class: "scores"});
const formula = el("p", {class: "formula"});
const ranks = el("p", {"aria-live": "polite"});

function drawHeat(means) {
  const firsts = means.map((row, part) => row.every((value) => value <= row[part]));
  heat.replaceChildren(
    el("caption", {}, `Means of the ${group ** 2} maps of ${classes[asked.k]} (rows) over the bins of the roi (columns)`),
    el("tr", {}, el("td"), SHORT.map((name) => el("th", {scope: "col"}, name))),
    ...means.map((row, part) =>
      el(
        "tr",
        {},
        el("th", {scope: "row", title: partName(part)}, SHORT[part]),
        row.map((value, b) =>
          el("td", {class: b === part && "diagonal", style: `background: ${colour(value)}`}, written(value, 1)),
        ),
      ),
    ),
  );
  const count = firsts.filter(Boolean).length;
  ranks.replaceChildren(
    "The own bin ranks first on ",
    el("output", {id: "firsts", class: "number"}, `${count}`),
    ` of ${group ** 2} maps. IoU with the first roi: `,
    el("output", {id: "iou", class: "number"}, written(overlapOf(asked.corners, data.roi).iou)),
  );
}

function drawScores(arrays) {
  const found = classes.map((_, k) => mean(votesOf(k, arrays)));
  const powers = found.map((score) => Math.exp(score - Math.max(...found)));
  const sum = powers.reduce((a, b) => a + b);
  const head = ["class", "score", "probability"].map((word) => el("th", {scope: "col"}, word));
  scores.replaceChildren(
    el("caption", {}, "Score: the mean of a class's votes"),
    el("tr", {}, head),
    ...classes.map((name, k) =>
      el(
        "tr",
        {"data-class": name},
        el("th", {scope: "row"}, name),
        el("td", {}, written(found[k])),
        el("td", {}, written(powers[k] / sum, 3)),
      ),
    ),
  );
}

function set(change) {
  const shown = [asked.k, asked.part];
  Object.assign(asked, change);
  const arrays = plannedArrays(settings, asked.corners.map(f32), planeOf(asked.k, 0));
  const {rows, columns} = drawnBoxes(settings, arrays, 0);
  const [xs, ys] = [columns, rows].map((edges) => edges.map((v) => v / scale));
  const inner = (edges) => edges.slice(1, -1);
  lines.replaceChildren(
    ...inner(xs).map((x) => svg("line", {x1: x, x2: x, y1: ys[0], y2: ys.at(-1)})),
    ...inner(ys).map((y) => svg("line", {x1: xs[0], x2: xs.at(-1), y1: y, y2: y})),
  );
  const [ph, pw] = [Math.floor(Math.max(asked.part, 0) / group), Math.max(asked.part, 0) % group];
  const place = {x: xs[pw], y: ys[ph], width: xs[pw + 1] - xs[pw], height: ys[ph + 1] - ys[ph]};
  filled(own, place, []);
  if (!overlay.hasAttribute("href") || shown[0] !== asked.k || shown[1] !== asked.part) paintMap(asked.k, asked.part);
  const means = meansOf(asked.k, arrays);
  const votes = means.map((row, part) => row[part]);
  drawHeat(means);
  drawScores(arrays);
  const terms = votes.map((vote) => (vote < 0 ? `(${written(vote, 1)})` : written(vote, 1))).join(" + ");
  formula.textContent = `score of ${classes[asked.k]} = (${terms}) / ${group ** 2} = ${written(mean(votes))}`;
}

document.head.append(
  el(
    "style",
    {},
    `:root { --map-above: #e8590c; --map-below: #1c6fd1; }
    svg .handle { r: 5px; stroke: #000; fill: #fff; }
    .box, .edges line { stroke: #fff; }
    .box, .edges, .own { filter: drop-shadow(0 0 1px #000) drop-shadow(0 0 1px #000); }
    .box, .own, .edges line, .handle { vector-effect: non-scaling-stroke; }
    .edges line { stroke-width: 1.2; }
    .own { fill: none; stroke: #ffd21a; stroke-width: 3; pointer-events: none; }
    .heat { width: 100%; table-layout: fixed; font-size: clamp(10.5px, 2.6vw, 13px); }
    .heat th, .heat td { padding: 3px 1px; text-align: center; }
    .heat .diagonal { outline: 2px solid var(--ink); outline-offset: -2px; font-weight: 700; }
    caption { text-align: left; font-size: 13px; padding-bottom: 4px; color: var(--quiet); }`,
  ),
);
const choices = (names) => names.map((name, i) => [i, name]);
root.append(
  withControls(
    drawing,
    el("label", {class: "row"}, "class ", choiceOf("Class", choices(classes), asked.k, (k) => set({k: Number(k)}))),
    el(
      "label",
      {class: "row"},
      "map over the photo ",
      choiceOf("Map", [[-1, "none"], ...choices(SHORT.map((_, i) => partName(i)))], 0, (i) => set({part: Number(i)})),
    ),
    el("p", {class: "quiet"}, "Orange: above 0; blue: below 0. The yellow frame is the bin that reads this map."),
    scores,
  ),
  heat,
  ranks,
  formula,
);
set({});
