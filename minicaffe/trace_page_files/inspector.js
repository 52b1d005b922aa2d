// The inspector of a ROI layer: image, feature map and pooled output side by side; one roi, one channel, one bin chosen.

const CLOSENESS = {map: "the whole map", roi: "the roi", bin: "the bin"};

const chosen = {};  // by layer name, so that a choice outlives a step

function inspectorView(layer, backward) {
  const root = el("section", {class: "card inspector", "aria-label": `ROI inspector of ${layer.name}`, "data-kind": layer.roi.kind});
  roiArrays(layer.roi).then((arrays) => {
    if (arrays.rois.shape[0] === 0) root.append(el("p", {}, "No rois reached this layer: its output is empty."));
    else inspector(root, layer, arrays, backward);
  });
  return root;
}

function inspector(root, layer, arrays, backward) {
  const roi = layer.roi, count = arrays.rois.shape[0], [pooledH, pooledW] = roi.pooled;
  const channels = roi.output_channels;
  const state = chosen[layer.name] ??= {r: 0, c: 0, ph: pooledH >> 1, pw: pooledW >> 1, close: "roi", cell: null};
  const views = {
    image: stage(trace.image ? "Image" : "Input area", {"aria-label": "Rois on the image: click one"}),
    map: stage(backward ? "Gradient of the feature map" : "Feature map", {"aria-label": "The feature map: click a bin"}),
    output: stage(backward ? "Gradient of the output" : "Pooled output", {tabindex: 0, role: "application", "aria-label": "Pooled output: arrow keys choose the bin"}),
  };
  const set = (change) => { Object.assign(state, change); draw(); };
  const sliders = {
    r: slider("roi", 0, count - 1, state.r, (r) => set({r, cell: null})), c: slider("channel", 0, channels - 1, state.c, (c) => set({c, cell: null})),
    ph: slider("bin row", 0, pooledH - 1, state.ph, (ph) => set({ph})), pw: slider("bin column", 0, pooledW - 1, state.pw, (pw) => set({pw})),
  };
  const close = el("select", {onchange: () => set({close: close.value})}, Object.entries(CLOSENESS).map(([value, name]) => el("option", {value, selected: value === state.close}, name)));
  const text = el("div", {class: "worked", "aria-live": "polite"});
  root.append(el("h3", {}, "ROI inspector"), el("div", {class: "sliders"}, Object.values(sliders), el("label", {class: "slider"}, el("span", {}, "map shows"), close)),
    el("div", {class: "views"}, Object.values(views).map((view) => view.figure)), legend(roi, backward), text,
    ...(roi.explained.length ? [el("details", {class: "inner"}, el("summary", {}, "minicaffe explain, at its default place"), el("pre", {}, roi.explained.join("\n")))] : []));

  views.image.frame.addEventListener("click", (event) => {
    const next = roiAt(arrays, views.image.at(event).map((v) => v * imageScale()), state.r);
    if (next !== null) set({r: next, cell: null});
  });
  views.map.frame.addEventListener("click", (event) => {
    const [x, y] = views.map.at(event), boxes = drawnBoxes(roi, arrays, state.r);
    const bin = {ph: between(boxes.rows, y), pw: between(boxes.columns, x)};
    const [, height, width] = arrays.map.shape, h = Math.floor(y), w = Math.floor(x);
    const cell = backward && h >= 0 && w >= 0 && h < height && w < width ? {h, w} : null;
    set({...(bin.ph !== null && bin.pw !== null ? bin : {}), cell});
  });
  views.output.frame.addEventListener("click", (event) => {
    const [x, y] = views.output.at(event).map(Math.floor);
    if (x >= 0 && y >= 0 && x < pooledW && y < pooledH) set({ph: y, pw: x});
  });
  views.output.frame.addEventListener("keydown", (event) => {
    const by = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!by) return;
    event.preventDefault();
    set({ph: clamp(state.ph + by[0], 0, pooledH - 1), pw: clamp(state.pw + by[1], 0, pooledW - 1)});
  });
  if (trace.image) photoCanvas().then((canvas) => { views.image.paint(canvas, 0, 0, trace.image.width, trace.image.height); });
  const redraw = new ResizeObserver(() => draw());
  redraw.observe(views.map.frame);

  const draw = () => {
    for (const name of Object.keys(sliders)) sliders[name].set(state[name]);
    const bin = readBin(roi, arrays, state.r, state.c, state.ph, state.pw);
    drawImage(views.image, roi, arrays, state);
    drawMap(views.map, roi, arrays, state, bin, backward);
    drawOutput(views.output, roi, arrays, state, backward);
    const parts = workedOut(roi, arrays, state, bin, backward);
    if (backward && state.cell && arrays.dy) parts.push(senderPart(roi, arrays, state));
    text.replaceChildren(...parts.map(({title, lines}) => el("div", {class: "part"}, el("h4", {}, title), lines.map((line) => el("p", {}, line)))));
  };
  draw();
}

const clamp = (v, low, high) => Math.min(Math.max(v, low), high);
const imageScale = () => trace.image?.scale ?? 1;

/** The interval of rising edges that holds v, or null. */
function between(edges, v) {
  const i = edges.findIndex((edge, k) => k + 1 < edges.length && edge <= v && v < edges[k + 1]);
  return i < 0 ? null : i;
}

/** The smallest roi around a point of the net's input; from the one chosen, the next in size. */
function roiAt(arrays, [x, y], current) {
  const around = [];
  for (let r = 0; r < arrays.rois.shape[0]; r++) {
    const [, x1, y1, x2, y2] = row(arrays.rois, r);
    if (x1 <= x && x <= x2 && y1 <= y && y <= y2) around.push([(x2 - x1) * (y2 - y1), r]);
  }
  around.sort((a, b) => a[0] - b[0]);
  const at = around.findIndex(([, r]) => r === current);
  return around.length ? around[(at + 1) % around.length][1] : null;
}

function legend(roi, backward) {
  const keys = [["dashed", "the roi before rounding"], ["grid", readsBins(roi) ? "the bins' edges before rounding (dashed) and the cells they take (solid)" : "the bins"],
    ["chosen", "the chosen bin"], readsBins(roi) ? null : ["sample", "samples"], takesMaximum(roi) ? ["winner", "the greatest"] : null].filter(Boolean);
  if (!readsBins(roi)) keys[0][1] = "the roi (nothing is rounded)";
  return el("p", {class: "quiet legend"}, keys.map(([name, text]) => el("span", {}, el("i", {class: `key ${name}`}), text)), backward ? el("span", {}, "Click a cell of the map: which bins send it how much.") : null);
}

/** All rois faintly, the chosen one plainly. */
function drawImage(view, roi, arrays, state) {
  const scale = imageScale(), [, height, width] = arrays.map.shape;
  const size = trace.image ? [trace.image.width, trace.image.height] : [width / roi.spatial_scale, height / roi.spatial_scale];
  view.look(0, 0, ...size);
  const boxes = [], faint = clamp(12 / arrays.rois.shape[0], 0.08, 0.5);
  for (let r = 0; r < arrays.rois.shape[0]; r++) {
    const [, x1, y1, x2, y2] = row(arrays.rois, r).map((v) => v / scale);
    if (r !== state.r) boxes.push(box(x1, y1, x2, y2, {class: "other", "stroke-opacity": faint}));
  }
  const [, x1, y1, x2, y2] = row(arrays.rois, state.r).map((v) => v / scale);
  view.draw(trace.image ? null : box(0, 0, ...size, {class: "area"}), boxes, box(x1, y1, x2, y2, {class: "halo"}), box(x1, y1, x2, y2, {class: "chosen", "data-roi": state.r}));
  view.say(`roi ${state.r} of ${arrays.rois.shape[0]}`);
}

function drawMap(view, roi, arrays, state, bin, backward) {
  const [stored, height, width] = arrays.map.shape;
  const boxes = drawnBoxes(roi, arrays, state.r);
  const source = backward && arrays.dx ? arrays.dx : arrays.map;
  let range = [0, 0];
  if (bin.channel < stored) {
    range = rangeOf(source, bin.channel * height * width, height * width, backward);
    view.paint(greyCanvas(source, bin.channel * height * width, height, width, ...range), 0, 0, width, height);
    view.say(`channel ${bin.channel} · black ${number(range[0], 3)}, white ${number(range[1], 3)}`);
  } else view.say(`channel ${bin.channel} is not kept in this page`);
  if (state.close === "bin") {
    const [x1, y1, x2, y2] = readSpan(bin) ?? boxes.used;
    view.look(x1 - 0.5, y1 - 0.5, x2 - x1 + 1, y2 - y1 + 1);
  } else if (state.close === "roi") {
    const [x1, y1, x2, y2] = [Math.min(boxes.plain[0], boxes.used[0]), Math.min(boxes.plain[1], boxes.used[1]), Math.max(boxes.plain[2], boxes.used[2]), Math.max(boxes.plain[3], boxes.used[3])];
    view.look(x1 - 1.5, y1 - 1.5, Math.max(x2 - x1, 1) + 3, Math.max(y2 - y1, 1) + 3);
  } else view.look(0, 0, width, height);
  view.draw(mapOverlay(roi, arrays, state, bin, boxes, backward, range, view.grain()));
}

/** The box around the cells that a bin reads, or null. */
function readSpan(bin) {
  const cells = cellsRead(bin);
  if (!cells.length) return null;
  const rows = cells.map((cell) => cell.h), columns = cells.map((cell) => cell.w);
  return [Math.min(...columns), Math.min(...rows), Math.max(...columns) + 1, Math.max(...rows) + 1];
}

function mapOverlay(roi, arrays, state, bin, boxes, backward, range, grain) {
  const [, height, width] = arrays.map.shape;
  const line = (x1, y1, x2, y2, name) => svg("line", {x1, y1, x2, y2, class: name});
  const [left, top, right, bottom] = boxes.used;
  const edges = [...boxes.rows.map((y) => line(left, y, right, y, "edge")), ...boxes.columns.map((x) => line(x, top, x, bottom, "edge"))];
  const best = bin.items[bin.best];
  const facts = {"data-channel": bin.channel, "data-roi": state.r, "data-bin": `${state.ph},${state.pw}`, "data-value": bin.stored ? bin.value : "", "data-argmax": best ? `${best.h},${best.w}` : ""};
  const marks = [];
  if (readsBins(roi)) {
    const {h, w} = bin.bounds;
    Object.assign(facts, {"data-hstart": h[0], "data-hend": h[1], "data-wstart": w[0], "data-wend": w[1]});
    marks.push(wholeBins(roi, arrays, state.r), box(w[0], h[0], w[1], h[1], {class: "bin"}));
  } else {
    Object.assign(facts, {"data-samples": bin.items.map((item) => `${item.h},${item.w}`).join(";")});
    const [y1, y2, x1, x2] = [boxes.rows[state.ph], boxes.rows[state.ph + 1], boxes.columns[state.pw], boxes.columns[state.pw + 1]];
    marks.push(box(x1, y1, x2, y2, {class: "bin"}), readCells(bin));
    marks.push(bin.items.map((item) => svg("circle", {cx: item.w + 0.5, cy: item.h + 0.5, r: 3.2 * grain, class: "sample"})));
  }
  if (best) marks.push(svg("circle", {cx: best.w + 0.5, cy: best.h + 0.5, r: 0.46, class: "winner"}));
  const given = backward && arrays.dx ? shares(roi, bin).map((cell) => box(cell.w, cell.h, cell.w + 1, cell.h + 1, {class: "gets"})) : [];
  if (backward && state.cell) given.push(box(state.cell.w, state.cell.h, state.cell.w + 1, state.cell.h + 1, {class: "asked"}));
  const values = backward && arrays.dx ? arrays.dx : arrays.map;
  const cells = bin.stored ? cellsRead(bin).map(({h, w}) => ({h, w, value: values[(bin.channel * height + h) * width + w], strong: best && readsBins(roi) && best.h === h && best.w === w})) : [];
  return svg("g", {class: "overlay", ...facts}, box(0, 0, width, height, {class: "area"}), edges, box(...boxes.plain, {class: "halo thin"}), box(...boxes.plain, {class: "plain"}), marks, given, cellTexts(cells, range, grain));
}

/** The cells that each bin of a roi takes, as thin boxes. */
function wholeBins(roi, arrays, r) {
  const [height, width] = roi.pooled, lines = [];
  for (let ph = 0; ph < height; ph++) {
    for (let pw = 0; pw < width; pw++) {
      const {h, w} = binBounds(arrays, r, ph, pw);
      if (h[1] > h[0] && w[1] > w[0]) lines.push(box(w[0], h[0], w[1], h[1], {class: "taken"}));
    }
  }
  return lines;
}

/** The cells that a bin reads, each once. */
function cellsRead(bin) {
  const found = new Map();
  for (const item of bin.items) for (const cell of item.cells) if (cell.h >= 0 && cell.w >= 0) found.set(`${cell.h},${cell.w}`, cell);
  return [...found.values()];
}

const readCells = (bin) => cellsRead(bin).map(({h, w}) => box(w, h, w + 1, h + 1, {class: "read"}));

function drawOutput(view, roi, arrays, state, backward) {
  const [height, width] = roi.pooled, values = backward && arrays.dy ? arrays.dy : arrays.output;
  view.look(-0.1, -0.1, width + 0.2, height + 0.2);
  const first = outputIndex(roi, arrays, {...state, ph: 0, pw: 0});
  const cells = [];
  let range = [0, 0];
  if (values && first !== null) {
    range = rangeOf(values, first, height * width, backward);
    view.paint(greyCanvas(values, first, height, width, ...range), 0, 0, width, height);
    for (let h = 0; h < height; h++) for (let w = 0; w < width; w++) cells.push({h, w, value: values[first + h * width + w], strong: h === state.ph && w === state.pw});
    view.say(`roi ${state.r}, channel ${state.c}, bin (${state.ph}, ${state.pw}) = ${number(values[first + state.ph * width + state.pw])}`);
  } else view.say(`channel ${state.c} is not kept in this page`);
  view.draw(box(0, 0, width, height, {class: "area"}), cellTexts(cells, range, view.grain()), box(state.pw, state.ph, state.pw + 1, state.ph + 1, {class: "halo"}),
    box(state.pw, state.ph, state.pw + 1, state.ph + 1, {class: "chosen", "data-bin": `${state.ph},${state.pw}`}));
}

const MOST_SENDERS = 20;

function senderPart(roi, arrays, state) {
  const {h, w} = state.cell;
  const found = senders(roi, arrays, state.c, h, w, isPositionSensitive(roi) ? [state.ph, state.pw] : null);
  const total = found.reduce((sum, {share, dy}) => sum + share * dy, 0);
  const lines = found.slice(0, MOST_SENDERS).map(({r, ph, pw, share, dy}) => `roi ${r}, bin (${ph}, ${pw}): ${number(share, 5)} × ${number(dy, 5)} = ${number(share * dy, 5)}`);
  if (found.length > MOST_SENDERS) lines.push(`… and ${found.length - MOST_SENDERS} more`);
  const channel = mapChannel(roi, state.c, state.ph, state.pw), [stored, height, width] = arrays.map.shape;
  if (arrays.dx && channel < stored) lines.push(`the layer's dx there: ${number(arrays.dx[(channel * height + h) * width + w], 7)}`);
  return {title: `Cell [${h}, ${w}] gets`, lines: found.length ? [...lines, `sum: ${number(total, 7)}`] : ["nothing: no bin's gradient lands here"]};
}
