// The panel: everything about the selected layer at the current step.

function panelView(root) {
  let shown = null;
  return (state) => {
    const key = `${state.view} ${state.layer} ${state.step}`;
    if (key === shown) return;
    shown = key;
    root.replaceChildren(...(state.view === "result" ? detectionsPanel() : layerPanel(state)));
    root.scrollTop = 0;
  };
}

function layerPanel({layer: i, step: s}) {
  const layer = trace.layers[i],
    step = s === null ? null : trace.steps[s];
  const kind = step?.kind;
  const running = kind === "forward" || kind === "backward";
  return [
    layerHead(layer, i, step),
    trace.error?.layer === i
      ? el("p", {class: "error"}, el("strong", {}, `This layer's ${KINDS[trace.error.way] ?? trace.error.way} failed.`))
      : null,
    blobTable(layer, i),
    layer.roi && running ? inspectorView(layer, kind === "backward") : null,
    ...[...(kind === "backward" ? topDiffs(layer, i) : []), ...(step?.blobs ?? [])].map((blob) =>
      blobCard(blob, `${blob.role} ${blob.part}`),
    ),
    ...layer.params.flatMap((param) => paramCards(param, kind)),
    el("details", {class: "card", open: true}, el("summary", {}, "Its block in the prototxt"), el("pre", {}, layer.param)),
  ].filter(Boolean);
}

function layerHead(layer, i, step) {
  const facts = [
    layer.place,
    layer.in_place ? "works in place" : null,
    `own tops take ${byteText(layer.phase_bytes)}`,
    step ? timeText(step.ms) : "this layer was not reached",
  ].filter(Boolean);
  const kinds = Object.keys(KINDS).filter((kind) => stepsOf[i][kind] !== undefined);
  return el(
    "div",
    {class: "head"},
    el("h2", {}, layer.name, el("span", {class: "type"}, layer.type)),
    el("p", {class: "quiet"}, facts.join(" · ")),
    el(
      "div",
      {class: "row", role: "group", "aria-label": "Steps of this layer"},
      kinds.map((kind) =>
        button(KINDS[kind], `${KINDS[kind]} of this layer`, () => show({step: stepsOf[i][kind], layer: i, view: "layers"}), {
          class: "kind",
          "aria-pressed": String(kind === step?.kind),
        }),
      ),
    ),
  );
}

/** The diffs that a layer's tops had when its backward ran: what their readers left in them. */
function topDiffs(layer, i) {
  return layer.tops
    .map((name) => {
      const [reader] = readersOf(i, name);
      const step = trace.steps[stepsOf[reader]?.backward];
      const blob = step?.blobs.find((other) => other.name === name && other.part === "diff");
      return blob ? {...blob, role: "top"} : null;
    })
    .filter(Boolean);
}

/** Bottoms and tops with their shapes; a click goes to who wrote or reads them. */
function blobTable(layer, i) {
  const rows = ["bottom", "top"].flatMap((role) =>
    layer[`${role}s`].map((name) => {
      const shape = shapesOf[i][role][name];
      const others = role === "bottom" ? [writerOf(i, name)] : readersOf(i, name);
      return el(
        "tr",
        {"data-role": role},
        el("th", {scope: "row"}, role),
        el("td", {class: "mono"}, name),
        el("td", {class: "mono shape"}, shape ? shapeText(shape) : "not known"),
        el(
          "td",
          {},
          others
            .filter((other) => other !== null)
            .map((other) =>
              el(
                "button",
                {type: "button", class: "link", onclick: () => choose(other)},
                `${role === "bottom" ? "from" : "to"} ${trace.layers[other].name}`,
              ),
            ),
        ),
      );
    }),
  );
  return rows.length ? el("div", {class: "scroll"}, el("table", {class: "blobs"}, el("tbody", {}, rows))) : null;
}

function writerOf(i, name) {
  for (let k = i - 1; k >= 0; k--) if (trace.layers[k].tops.includes(name)) return k;
  return null;
}

function readersOf(i, name) {
  const readers = [];
  for (let k = i + 1; k < trace.layers.length; k++) {
    if (trace.layers[k].bottoms.includes(name)) readers.push(k);
    if (trace.layers[k].tops.includes(name)) break;
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
      el("span", {class: "chip"}, role),
      el("span", {class: "mono shape"}, shapeText(blob.shape)),
    ),
    notFinite(blob),
    el("div", {class: "numbers"}, statistics(blob), blob.histogram ? histogramView(blob.histogram) : null),
    blob.tiles ? tilesView(blob.tiles, what) : null,
    !blob.tiles && blob.values ? valuesView(blob) : null,
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
  return el(
    "dl",
    {class: "stats"},
    Object.entries(entries).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/** The numbers of a small blob: its first rows. */
function valuesView(blob) {
  const columns = blob.shape.length > 1 ? blob.shape.slice(1).reduce((a, b) => a * b, 1) : 1;
  const rows = blob.shape.length ? blob.shape[0] : 1;
  const room = {rows: columns === 1 ? 64 : 16, columns: 24};
  const box = el("div", {class: "scroll values", tabindex: 0, role: "region", "aria-label": `Values of ${blob.name}`});
  const draw = async () => {
    const values = await read(blob.values);
    const line = (r) => [...values.subarray(r * columns, r * columns + Math.min(columns, room.columns))];
    if (columns === 1)
      box.append(el("p", {class: "mono"}, [...values.subarray(0, room.rows)].map((v) => number(v, 4)).join("  ")));
    else
      box.append(
        el(
          "table",
          {},
          el(
            "tbody",
            {},
            Array.from({length: Math.min(rows, room.rows)}, (_, r) =>
              el(
                "tr",
                {},
                el("th", {scope: "row"}, r),
                line(r).map((v) => el("td", {class: Number.isFinite(v) ? null : "bad"}, number(v, 4))),
              ),
            ),
          ),
        ),
      );
    if (rows > room.rows || columns > room.columns)
      box.append(
        el(
          "p",
          {class: "quiet"},
          `the first ${Math.min(rows, room.rows)} of ${rows} rows, ${Math.min(columns, room.columns)} of ${columns} numbers each`,
        ),
      );
  };
  return el(
    "details",
    {
      ontoggle: (event) => {
        if (event.target.open && !box.children.length) draw();
      },
      class: "inner",
    },
    el("summary", {}, "Values"),
    box,
  );
}
