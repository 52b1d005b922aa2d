// A roi to drag on an image, and the maps of a feature pyramid: the roi's size chooses the map from which it is pooled.

const [WIDTH, HEIGHT] = data.size;
const [LEAST, MOST] = [data.levels[0].level, data.levels[data.levels.length - 1].level];
const {level: MIDDLE, side: SIDE} = data.middle;
const SLANT = 0.35; // of a map's width: maps are drawn as parallelograms

const levelOf = (width, height) => MIDDLE + Math.log2(Math.sqrt(width * height) / SIDE);

const drawing = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `An image of ${WIDTH} by ${HEIGHT} pixels`});
drawing.append(
  svg("rect", {width: WIDTH, height: HEIGHT, fill: "var(--card)", stroke: "var(--line)"}),
  ...[112, 224, 448].map((side) => [
    svg("rect", {width: side, height: side, fill: "none", stroke: "var(--line)", "stroke-width": 2, "stroke-dasharray": "8 6"}),
    svg("text", {x: side - 8, y: side - 10, "text-anchor": "end", style: "font-size: 24px"}, String(side)),
  ]).flat(),
);

/** The corners of a part of a map, from 0 to 1, in the picture of the pyramid. */
function corners(i, [x1, y1, x2, y2]) {
  const share = 1 / 1.55 ** i;
  const [wide, high] = [220 * share, 60 * share];
  const [left, top] = [170 - (wide * (1 + SLANT)) / 2, 216 - 68 * i + (60 - high) / 2];
  const at = (x, y) => `${left + wide * x + SLANT * wide * (1 - y)},${top + high * y}`;
  return [at(x1, y1), at(x2, y1), at(x2, y2), at(x1, y2)].join(" ");
}

const maps = data.levels.map(({level}, i) => {
  const outline = svg("polygon", {points: corners(i, [0, 0, 1, 1]), fill: "var(--card)"});
  const part = svg("polygon", {"stroke-width": 1.5});
  return {level, outline, part, name: svg("text", {x: 6, y: 252 - 68 * i}, `P${level}`)};
});
const pyramid = svg("svg", {viewBox: "0 0 330 290", role: "img"}, maps.map(({outline, part, name}) => [outline, part, name]));

const formula = el("p", {class: "formula", "aria-live": "polite"});
const rows = data.levels.map(({level, stride}) => {
  const cells = el("td");
  const row = el("tr", {}, el("th", {scope: "row"}, `P${level}`), el("td", {}, String(stride)));
  row.append(el("td", {}, `${Math.ceil(HEIGHT / stride)} × ${Math.ceil(WIDTH / stride)}`), cells);
  return {row, cells, stride, level};
});
const headings = ["level", "stride", "map, cells", "roi, cells"].map((text) => el("th", {scope: "col"}, text));
const table = el("table", {}, el("thead", {}, el("tr", {}, headings)), el("tbody", {}, rows.map(({row}) => row)));

function update([x1, y1, x2, y2]) {
  const [width, height] = [x2 - x1 + 1, y2 - y1 + 1];
  const exact = levelOf(width, height);
  const chosen = clamp(Math.floor(exact), LEAST, MOST);
  for (const [i, {level, outline, part}] of maps.entries()) {
    const isChosen = level === chosen;
    outline.setAttribute("stroke", isChosen ? "var(--one)" : "var(--line)");
    outline.setAttribute("stroke-width", isChosen ? 3 : 1.5);
    part.setAttribute("points", corners(i, [x1 / WIDTH, y1 / HEIGHT, (x2 + 1) / WIDTH, (y2 + 1) / HEIGHT]));
    part.setAttribute("fill", isChosen ? "var(--one)" : "none");
    part.setAttribute("stroke", isChosen ? "var(--one)" : "var(--quiet)");
  }
  for (const {row, cells, stride, level} of rows) {
    cells.textContent = `${written(height / stride, 1)} × ${written(width / stride, 1)}`;
    row.style.outline = level === chosen ? "2px solid var(--one)" : "none";
    row.setAttribute("aria-current", String(level === chosen));
  }
  pyramid.setAttribute("aria-label", `The pyramid's maps P${LEAST} to P${MOST}; the roi is pooled from P${chosen}`);
  const limits = Math.floor(exact) === chosen ? "" : `, within ${LEAST} to ${MOST}`;
  formula.replaceChildren(
    `roi ${width} × ${height}: k = floor(${MIDDLE} + log2(√(${width} · ${height}) / ${SIDE})) = floor(${written(exact, 2)})${limits} = `,
    el("output", {id: "level", class: "number"}, String(chosen)),
  );
}

const drag = dragBox(drawing, "Roi", "one", data.roi, data.size, update, 8);
for (const part of drag.group.children) part.style.strokeWidth = "5";
drag.group.querySelector("circle").setAttribute("r", 14);
drawing.append(drag.group);
root.append(
  el("div", {class: "side"}, drawing, pyramid),
  formula,
  el("div", {class: "row"}, table),
  el("p", {class: "quiet"}, "Drag the roi, or its lower right corner. Keys: arrows, with Shift the corner. The dashed squares have sides of 112, 224 and 448."),
);
update(data.roi);
