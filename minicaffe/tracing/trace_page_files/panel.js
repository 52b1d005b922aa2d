// The panel: the selected layer at the current step.

function panelView(root) {
  let shown = null;
  return (state) => {
    const key = `${state.view} ${state.layer} ${state.step} ${state.turn}`;
    if (key === shown) return;
    shown = key;
    withFocus(root, () => root.replaceChildren(...panelParts(state)));
    root.scrollTop = 0;
  };
}

function panelParts(state) {
  if (state.view !== "result") return layerPanel(state);
  return resultKind() === "classes" ? classesPanel() : detectionsPanel();
}

function layerPanel({layer: i, step: s}) {
  const layer = trace.layers[i];
  const step = s === null ? null : trace.steps[s];
  const kind = step?.kind;
  const running = kind === "forward" || kind === "backward";
  return [
    layerHead(layer, i, step),
    trace.error?.layer === i
      ? el("p", {class: "error"}, el("strong", {}, `This layer's ${KINDS[trace.error.way] ?? trace.error.way} failed.`))
      : null,
    blobTable(layer, i),
    kind === "backward" ? el("p", {class: "quiet gradient-of"}, `gradients of ${trace.net.gradient || "what the program put into the tops' diffs"}`) : null,
    layer.name === trace.lineage?.layer && trace.lineage.last && running ? proposalsCard() : null,
    layer.roi && running ? inspectorView(layer, kind === "backward") : null,
    layer.targets && kind === "forward" ? targetsCard(layer) : null,
    ...[...(kind === "backward" ? topDiffs(layer, i) : []), ...(step?.blobs ?? [])].map((blob) =>
      blobCard(blob, `${blob.role} ${blob.part}`),
    ),
    kind === "forward" ? sumSlot(layer) : null,
    kind === "forward" ? exampleView(layer) : null,
    kind === "forward" ? unitSlot(layer) : null,
    ...layer.params.flatMap((param) => paramCards(param, kind)),
    el("details", {class: "card", open: true}, el("summary", {}, "Block in the prototxt"), el("pre", {tabindex: 0}, layer.param)),
  ].filter(Boolean);
}

function layerHead(layer, i, step) {
  const facts = [
    layer.place,
    layer.fork,
    layer.in_place ? "in place" : null,
    `tops use ${byteText(layer.phase_bytes)}`,
    step ? timeText(step.ms) : "not reached",
  ].filter(Boolean);
  const buttons = Object.keys(KINDS)
    .filter((kind) => stepsOf[i][kind] !== undefined)
    .map((kind) => {
      const attributes = {class: "kind", "aria-pressed": String(kind === step?.kind)};
      return button(KINDS[kind], `${KINDS[kind]} of this layer`, () => goTo(stepsOf[i][kind]), attributes);
    });
  return el(
    "div",
    {class: "head"},
    el("h2", {}, layer.name, el("span", {class: "quiet type"}, layer.type)),
    el("p", {class: "quiet"}, facts.join(" · ")),
    attributesView(layer.attributes),
    el("div", {class: "row", role: "group", "aria-label": "Steps of this layer"}, buttons),
  );
}

/** The layer's parameters, as the prototxt sets them. */
function attributesView(attributes) {
  const entries = Object.entries(attributes);
  const items = entries.map(([name, value]) => el("div", {}, el("dt", {class: "quiet"}, name), el("dd", {}, value)));
  return entries.length ? el("dl", {class: "row attributes", "aria-label": "Parameters"}, items) : null;
}

/** The arithmetic of one number of the layer. */
function exampleView({example, tops}) {
  if (!example) return null;
  const summary = el("summary", {}, `How ${tops[0]}${example.at.length ? `[${example.at.join(", ")}]` : ""} is computed`);
  return el("details", {class: "card"}, summary, el("pre", {class: "explained", tabindex: 0}, example.lines.join("\n")));
}

/** The diffs of a layer's tops when its backward ran. */
function topDiffs(layer, i) {
  return layer.tops
    .map((name) => {
      const [reader] = readersOf(i, name); // one at most: a Split stands before several
      const step = trace.steps[stepsOf[reader]?.backward];
      const blob = step?.blobs.find((other) => other.name === name && other.part === "diff");
      return blob ? {...blob, role: "top"} : null;
    })
    .filter(Boolean);
}

/** Bottoms and tops with their shapes, and links to the layers that write or read them. */
function blobTable(layer, i) {
  const rows = ["bottom", "top"].flatMap((role) =>
    layer[`${role}s`].map((name) => {
      const shape = shapesOf[i][role][name];
      const others = role === "bottom" ? writersOf(i, name) : readersOf(i, name);
      const links = others.map((other) => {
        const text = `${role === "bottom" ? "from" : "to"} ${trace.layers[other].name}`;
        return el("button", {type: "button", class: "link", onclick: () => choose(other)}, text);
      });
      return el(
        "tr",
        {"data-role": role},
        el("th", {scope: "row", class: "quiet"}, role),
        el("td", {class: "mono"}, name),
        el("td", {class: "mono shape"}, shape ? shapeText(shape) : "unknown"),
        el("td", {}, links),
      );
    }),
  );
  return rows.length ? el("div", {class: "scroll"}, el("table", {class: "blobs"}, el("tbody", {}, rows))) : null;
}

/** The last layer before layer i that writes a blob, if any. */
function writersOf(i, name) {
  const writer = trace.layers.slice(0, i).findLastIndex((layer) => layer.tops.includes(name));
  return writer < 0 ? [] : [writer];
}

function readersOf(i, name) {
  const readers = [];
  for (let k = i + 1; k < trace.layers.length; k++) {
    if (trace.layers[k].bottoms.includes(name)) readers.push(k);
    if (trace.layers[k].tops.includes(name)) break; // overwritten: later layers read other contents
  }
  return readers;
}

function paramCards(param, kind) {
  const cards = [blobCard(param, "learned", "filter")];
  if (kind === "backward" && param.diff)
    cards.unshift(blobCard({...param.diff, name: param.name, shape: param.shape, part: "diff"}, "gradient", "filter"));
  return cards;
}

/** A blob: shape, statistics, histogram, maps, values. */
function blobCard(blob, role, what = "channel") {
  return el(
    "section",
    {class: `card${blob.part === "diff" ? " diff" : ""}`, "data-blob": blob.name, "data-role": role},
    el(
      "h3",
      {},
      el("span", {class: "mono"}, blob.name),
      el("span", {class: "quiet chip"}, role),
      el("span", {class: "mono shape"}, shapeText(blob.shape)),
    ),
    notFinite(blob),
    el("div", {class: "row numbers"}, statistics(blob), blob.histogram ? histogramView(blob.histogram) : null),
    blob.tiles ? cellsView(blob, role, blob.tiles.form === "labels" ? "anchor" : what) : null,
    blob.values ? valuesView(blob) : null,
  );
}

function notFinite(blob) {
  if (!blob.nan && !blob.inf) return null;
  const parts = [blob.nan ? `${blob.nan} NaN` : null, blob.inf ? `${blob.inf} infinite` : null].filter(Boolean);
  return el("p", {class: "loud", role: "alert"}, `${parts.join(" and ")} of ${blob.count} values`);
}

function statistics(blob) {
  const entries = {
    min: number(blob.min),
    mean: number(blob.mean),
    max: number(blob.max),
    std: number(blob.std),
    zeros: `${number(100 * blob.zeros, 3)} %`,
    values: blob.count,
  };
  const items = Object.entries(entries).map(([name, value]) =>
    el("div", {}, el("dt", {class: "quiet"}, name), el("dd", {}, value)),
  );
  return el("dl", {class: "stats"}, items);
}

const ROWS = 20;
const COLUMNS = 24;

/** The numbers of a small blob, page by page: the last axis across, the others down. */
function valuesView(blob) {
  const shape = blob.shape.slice(0, Math.max(1, blob.shape.findLastIndex((length) => length !== 1) + 1)); // without 1 x 1 maps
  const outer = shape.slice(0, -1);
  const lengths = {row: product(outer), column: product(shape.slice(-1))};
  const first = {row: 0, column: 0};
  const steps = {row: ROWS, column: COLUMNS};
  const box = el("div", {class: "scroll values", tabindex: 0, role: "region", "aria-label": `Values of ${blob.name}`});
  const pagers = ["row", "column"]
    .filter((what) => lengths[what] > steps[what])
    .map((what) => {
      const where = el("span", {class: "quiet", "aria-live": "polite"});
      const move = (by) => {
        first[what] = clamp(first[what] + by, 0, steps[what] * Math.floor((lengths[what] - 1) / steps[what]));
        draw();
      };
      const back = button("‹", `previous ${what}s of ${blob.name}`, () => move(-steps[what]));
      const on = button("›", `next ${what}s of ${blob.name}`, () => move(steps[what]));
      const say = () => {
        const last = Math.min(first[what] + steps[what], lengths[what]);
        where.textContent = `${what}s ${first[what]} to ${last - 1} of ${lengths[what]}`;
        pagerEnds(back, on, first[what] === 0, last === lengths[what]);
      };
      return {say, row: el("div", {class: "row"}, back, on, where)};
    });
  const draw = async () => {
    const values = await read(blob.values);
    const ends = {row: Math.min(first.row + ROWS, lengths.row), column: Math.min(first.column + COLUMNS, lengths.column)};
    const lines = [];
    for (let r = first.row; r < ends.row; r++) {
      const start = r * lengths.column;
      const roi = perRoi().has(blob.name) ? Math.floor(r / product(outer.slice(1))) : null;
      lines.push(valuesRow(indexText(r, outer), values.subarray(start + first.column, start + ends.column), roi));
    }
    const columns = Array.from({length: ends.column - first.column}, (_, c) =>
      el("th", {scope: "col", class: "quiet"}, first.column + c),
    );
    const head = el("thead", {}, el("tr", {}, el("td", {}), columns));
    box.replaceChildren(el("table", {}, lengths.column > 1 ? head : null, el("tbody", {}, lines)));
    for (const pager of pagers) pager.say();
  };
  const ontoggle = (event) => {
    if (!event.target.open || box.children.length) return; // drawn when first opened
    draw();
    if (perRoi().has(blob.name)) box.after(roisStage());
  };
  const rows = pagers.map((pager) => pager.row);
  return el("details", {ontoggle, class: "inner"}, el("summary", {}, "Values"), rows, box);
}

/** The index of row r of these axes: "3", "0, 2, 5"; nothing where there is one row. */
function indexText(r, axes) {
  const indices = [];
  for (const length of [...axes].reverse()) {
    indices.unshift(r % length);
    r = Math.floor(r / length);
  }
  return indices.join(", ");
}

/** roi: whose numbers they are, if any. */
function valuesRow(name, values, roi) {
  const cells = [...values].map((v) => el("td", {class: Number.isFinite(v) ? null : "bad"}, number(v, 4)));
  return el("tr", {"data-roi": roi}, el("th", {scope: "row", class: "quiet"}, name), cells);
}
