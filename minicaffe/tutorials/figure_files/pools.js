// One roi to drag over a map, and what each ROI layer reads there. In every drawing cell k of the map goes from k to k + 1.
// The roi goes from x1 · scale to x2 · scale. The position-sensitive layers read this one map for every bin.

const [HEIGHT, WIDTH] = [data.map.length, data.map[0].length];
const map = Object.assign(Float32Array.from(data.map.flat()), {shape: [1, HEIGHT, WIDTH]});
const range = [Math.min(...map), Math.max(...map)];
const asked = {corners: [...data.roi], part: 0, grid: 2, ph: 0, pw: 0, aligned: false};

const tint = (value) => 0.04 + (0.34 * (value - range[0])) / (range[1] - range[0] || 1);
const number = (value) => written(value, 4).replace(/\.?0+$/, "");
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const rect = ([x1, y1, x2, y2], attributes) => svg("rect", {x: x1, y: y1, width: x2 - x1, height: y2 - y1, ...attributes});

/** The map's cells, `side` units wide; with their numbers if `texts`. */
const cells = (side, texts) =>
  Array.from(map, (value, i) => {
    const [x, y] = [(i % WIDTH) * side, Math.floor(i / WIDTH) * side];
    const cell = rect([x, y, x + side, y + side], {class: "cell", "fill-opacity": tint(value)});
    return texts ? [cell, svg("text", {x: x + side / 2, y: y + 0.62 * side, class: "value"}, number(value))] : cell;
  });

const side = 1 / data.scale;
const size = [WIDTH * side, HEIGHT * side];
const drawing = svg("svg", {viewBox: `0 0 ${size.join(" ")}`, role: "group", "aria-label": "The map and the roi"});
drawing.style.setProperty("--side", side);
const drag = dragBox(drawing, "The roi", "one", asked.corners, size, (corners) => set({corners}), side / 4);
drawing.append(...cells(side, true).flat(), drag.group);

/** The settings of a pool, as pool_plans.js and roi_geometry.js take them. cycle: one map for all bins. */
const settingsOf = (pool) => {
  const {grid, aligned} = asked;
  return {...pool, spatial_scale: data.scale, pooled: [grid, grid], group: grid, item: 0, cycle: 1, aligned, ratio: 2};
};

const spans = (axis, [start, end]) => (end > start ? `${axis} ${start}${end - 1 > start ? `–${end - 1}` : ""}` : `no ${axis}`);

/** How a pool reads the roi along x: the first two sentences below its drawing. */
function reading(pool, arrays) {
  const [first, , last] = row(arrays.rounded ?? arrays.start, 0);
  const [from, to] = [first, last].map(number);
  if (pool.kind === "max_bins") return `Corners rounded to cells: columns ${from} to ${to}, both included.`;
  if (pool.kind === "psroi_bins") return `Corners rounded to pixels, then one pixel further: x from ${from} to ${to}.`;
  if (pool.kind === "psroi_samples") return `Nothing rounded, the end one pixel further: x from ${from} to ${to}.`;
  if (pool.kind === "max_samples") return `Nothing rounded, the end one cell further: x from ${from} to ${number(last + 1)}.`;
  return `Nothing rounded${asked.aligned ? ", half a cell subtracted" : ""}: x from ${from} to ${to}.`;
}

/** What the chosen bin makes of its cells or samples. */
function result(pool, bin) {
  const [what, name] = [readsBins(pool) ? "cell" : "sample", takesMaximum(pool) ? "max" : "mean"];
  const count = plural(bin.items.length, what);
  const listed = bin.items.length <= 9 ? bin.items.map((item) => number(item.value)).join(", ") : count;
  const {bounds} = bin;
  const where = bounds ? `${spans("columns", bounds.w)}, ${spans("rows", bounds.h)}: ` : `${count}: `;
  return bin.items.length ? `${where}${name}(${listed}) =` : "an empty bin =";
}

function gradient(factors) {
  const most = Math.max(...factors.map((cell) => cell.factor));
  return factors.length ? `Gradient: ${plural(factors.length, "cell")}, at most ${number(most)}.` : "Gradient: none.";
}

const panels = POOLS.map((pool) => {
  const view = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${pool.name}: its bins`});
  const marks = svg("g");
  view.append(...cells(1, false), marks);
  const [how, formula, back] = [el("p", {class: "quiet"}), el("p", {class: "formula"}), el("p", {class: "quiet"})];
  const found = el("output", {class: "number"});
  const section = el("section", {"data-pool": pool.kind}, el("h2", {}, pool.name), view, how, formula, back);
  const draw = (corners) => {
    const settings = settingsOf(pool);
    const arrays = plannedArrays(settings, corners, map);
    const {rows, columns, used} = drawnBoxes(settings, arrays, 0);
    const bin = readBin(settings, arrays, 0, 0, asked.ph, asked.pw);
    const factors = gradientFactors(settings, bin);
    const most = Math.max(...factors.map((cell) => cell.factor), 0);
    const read = new Map(bin.items.flatMap((item) => item.cells.map(({h, w}) => [`${h},${w}`, [w, h, w + 1, h + 1]])));
    const lines = [
      ...columns.map((x) => svg("line", {x1: x, x2: x, y1: used[1], y2: used[3], class: "edge"})),
      ...rows.map((y) => svg("line", {x1: used[0], x2: used[2], y1: y, y2: y, class: "edge"})),
    ];
    const grids = Array.from({length: asked.grid ** 2}, (_, i) => [Math.floor(i / asked.grid), i % asked.grid]);
    const bins = readsBins(settings)
      ? grids.map(([ph, pw]) => {
          const {h, w} = binBounds(arrays, 0, ph, pw);
          const inset = 0.05 + 0.04 * ((ph + pw) % 2); // neighbours may overlap
          return rect([w[0] + inset, h[0] + inset, w[1] - inset, h[1] - inset], {class: "bin"});
        })
      : [];
    const samples = readsBins(settings) ? [] : bin.items.map(({h, w}) => [w + 0.5, h + 0.5]);
    marks.replaceChildren(
      ...[...read.values()].filter(([w, h]) => w >= 0 && h >= 0).map((box) => rect(box, {class: "read"})),
      ...factors.map(({h, w, factor}) => rect([w, h, w + 1, h + 1], {class: "share", "fill-opacity": (0.75 * factor) / most})),
      ...(bins.length ? bins : lines),
      rect(corners.map((v) => v * data.scale), {class: "roi"}),
      ...samples.map(([cx, cy]) => svg("circle", {cx, cy, r: 0.11, class: "sample"})),
    );
    view.onclick = (event) => {
      const [x, y] = placeIn(view, event);
      const at = (edges, v) => clamp(edges.findLastIndex((edge) => edge <= v), 0, asked.grid - 1);
      set({ph: at(rows, y), pw: at(columns, x)});
    };
    how.textContent = reading(settings, arrays);
    found.textContent = number(bin.value);
    formula.replaceChildren(`${result(settings, bin)} `, found);
    back.textContent = gradient(factors);
  };
  return {section, draw};
});

const binSliders = ["row", "column"].map((word, axis) =>
  numberSlider(`Bin ${word}`, 0, asked.grid - 1, 1, 0, (at) => set({[axis ? "pw" : "ph"]: at}), 0),
);
const grids = [1, 2, 3, 4].map((count) => [count, `${count} × ${count} bins`]);
const part = numberSlider("Shift in pixels", 0, 0.9, 0.1, 0, (now) => set({part: now}), 1);
const aligned = el("input", {type: "checkbox", onchange: () => set({aligned: aligned.checked})});
const roiText = el("p", {class: "formula", "aria-live": "polite"});

function set(change) {
  Object.assign(asked, change);
  [asked.ph, asked.pw] = [asked.ph, asked.pw].map((at) => Math.min(at, asked.grid - 1));
  binSliders.forEach(({row, set}, axis) => {
    row.querySelector("input").max = asked.grid - 1;
    set(axis ? asked.pw : asked.ph);
  });
  const corners = asked.corners.map((v) => f32(v + asked.part));
  const onMap = corners.map((v) => number(v * data.scale));
  roiText.textContent = `roi (${corners.map(number).join(", ")}) pixels × ${number(data.scale)} = (${onMap.join(", ")}) cells`;
  for (const panel of panels) panel.draw(corners);
}

document.head.append(
  el(
    "style",
    {},
    `.cell { fill: var(--two); stroke: var(--line); stroke-width: 1; }
    .cell, .bin, .edge, .roi, .read, .box, .handle { vector-effect: non-scaling-stroke; }
    svg .value { font-size: calc(0.28px * var(--side)); text-anchor: middle; pointer-events: none; }
    svg .handle { r: calc(0.18px * var(--side)); }
    .pools { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(210px, 45%), 1fr)); gap: 12px; }
    .pools section { display: grid; gap: 4px; align-content: start; }
    .pools svg { cursor: pointer; }
    .bin, .roi, .read { fill: none; }
    .bin, .edge { stroke: var(--two); stroke-width: 1.6; }
    .roi { stroke: var(--one); stroke-width: 2.4; }
    .read { stroke: var(--good); stroke-width: 2; }
    .share { fill: var(--good); }
    .sample { fill: var(--ink); stroke: var(--paper); stroke-width: 0.03; }
    .key { display: inline-block; width: 14px; height: 10px; margin-right: 5px; border: 2px solid; }`,
  ),
);
const key = (colour, text) => el("span", {}, el("i", {class: "key", style: `border-color: var(--${colour})`}), text);
root.append(
  withControls(
    drawing,
    choiceOf("Grid", grids, asked.grid, (value) => set({grid: Number(value)})),
    binSliders.map(({row}) => row),
    part.row,
    el("label", {class: "row"}, aligned, "ROIAlign (AVE): aligned"),
  ),
  roiText,
  el(
    "p",
    {class: "row"},
    key("one", "the roi, the same everywhere"),
    key("two", "the bins as the layer cuts them"),
    key("good", "cells of the chosen bin; fill: share of the gradient"),
    el("span", {}, "● samples"),
  ),
  el("p", {class: "quiet"}, "A sample at k reads cell k alone, so it is drawn in the middle of cell k: half a cell further."),
  el("div", {class: "pools"}, panels.map(({section}) => section)),
);
set({});
