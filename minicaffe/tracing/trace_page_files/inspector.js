// The inspector of an ROI layer: image, feature map and pooled output for one roi, channel and bin.

const CLOSENESS = {map: "the whole map", roi: "the roi", bin: "the bin"};

const chosen = {}; // by layer name: kept between steps

/** The first place of an inspector: channel, bin, what the map shows, the cell asked for. */
const usualPlace = ({pooled: [height, width]}) => ({c: 0, ph: height >> 1, pw: width >> 1, close: "roi", cell: null});

function inspectorView(layer, backward) {
  const root = el("section", {
    class: "card inspector",
    "aria-label": `ROI inspector of ${layer.name}`,
    "data-kind": layer.roi.kind,
  });
  roiArrays(layer.roi).then((arrays) => {
    if (arrays.rois.shape[0] === 0) root.append(el("p", {}, "No rois reached this layer. Its output is empty."));
    else inspector(root, layer, arrays, backward);
  });
  return root;
}

function inspector(root, layer, arrays, backward) {
  const roi = layer.roi;
  const [pooledH, pooledW] = roi.pooled;
  const state = (chosen[layer.name] ??= usualPlace(roi));
  state.r = Math.min(lastRoi.r, arrays.rois.shape[0] - 1);
  state.c = Math.min(state.c, roi.output_channels - 1); // on a live page the layer may have had more
  [state.ph, state.pw] = [Math.min(state.ph, pooledH - 1), Math.min(state.pw, pooledW - 1)];
  const set = (change) => {
    Object.assign(state, change);
    lastRoi.r = state.r;
    remember(true);
    draw();
  };
  const views = inspectorStages(backward);
  const controls = inspectorControls(roi, arrays, state, set);
  const text = el("div", {class: "worked", "aria-live": "polite"});
  root.append(
    el("h3", {}, "ROI inspector"),
    controls.element,
    el("div", {class: "views"}, [views.image.figure, views.map.figure, views.output.figure]),
    ...legend(roi, backward),
    saveButtons(() => root.querySelector(".views"), "the ROI inspector"),
    text,
    backward ? "" : poolsView(roi, arrays, () => state),
  );
  listen(views, roi, arrays, state, set, backward);
  dragsRoi(views.image, layer, arrays, state);
  if (trace.image) photoCanvas().then((canvas) => views.image.paint(canvas, 0, 0, trace.image.width, trace.image.height));

  const draw = () => {
    controls.follow();
    const bin = readBin(roi, arrays, state.r, state.c, state.ph, state.pw);
    drawImage(views.image, roi, arrays, state);
    drawMap(views.map, roi, arrays, state, bin, backward);
    drawOutput(views.output, roi, arrays, state, backward);
    const parts = arithmetic(roi, arrays, state, bin, backward);
    if (backward && state.cell && arrays.dy) parts.push(contributionPart(roi, arrays, state));
    text.replaceChildren(...parts.map(partView));
  };
  draw();
  new ResizeObserver(draw).observe(views.map.frame); // numbers in cells need room
}

function inspectorStages(backward) {
  return {
    image: stage(trace.image ? "Image" : "Input area", {
      tabindex: 0,
      role: "application",
      "aria-label":
        "Rois on the image: click one, or [ and ] choose it" + (trace.live ? "; arrow keys move it, with Shift its end" : ""),
    }),
    map: stage(backward ? "Gradient of the feature map" : "Feature map", {
      tabindex: 0,
      role: "application",
      "aria-label": `The feature map: click, or arrow keys, choose ${backward ? "a cell" : "the bin"}`,
    }),
    output: stage(backward ? "Gradient of the output" : "Pooled output", {
      tabindex: 0,
      role: "application",
      "aria-label": "Pooled output: arrow keys choose the bin",
    }),
  };
}

/** Sliders for roi, channel and bin, and the part of the map to show; follow() sets them to the state. */
function inspectorControls(roi, arrays, state, set) {
  const [pooledH, pooledW] = roi.pooled;
  const sliders = {
    r: slider("roi", 0, arrays.rois.shape[0] - 1, state.r, (r) => set({r, cell: null})),
    c: slider("channel", 0, roi.output_channels - 1, state.c, (c) => set({c, cell: null})),
    ph: slider("bin row", 0, pooledH - 1, state.ph, (ph) => set({ph})),
    pw: slider("bin column", 0, pooledW - 1, state.pw, (pw) => set({pw})),
  };
  const options = Object.entries(CLOSENESS).map(([value, name]) =>
    el("option", {value, selected: value === state.close}, name),
  );
  const close = el("select", {onchange: () => set({close: close.value})}, options);
  return {
    element: el(
      "div",
      {class: "sliders"},
      Object.values(sliders),
      el("label", {class: "slider"}, el("span", {}, "map shows"), close),
    ),
    follow() {
      for (const name of Object.keys(sliders)) sliders[name].set(state[name]);
    },
  };
}

const partView = ({title, lines}) =>
  el("div", {class: "part"}, [el("h4", {}, title), ...lines.map((line) => el("p", {}, line))]);

/** Mouse and keys on the three stages. */
function listen(views, roi, arrays, state, set, backward) {
  const [pooledH, pooledW] = roi.pooled;
  views.image.frame.addEventListener("click", (event) => {
    const next = roiUnder(views.image, arrays, event, state.r);
    if (next !== null) set({r: next, cell: null});
  });
  views.image.frame.addEventListener("pointermove", (event) => hoverRoi(roiUnder(views.image, arrays, event, state.r)));
  views.image.frame.addEventListener("keydown", (event) => {
    const by = {"[": -1, "]": 1}[event.key];
    if (by) set({r: clamp(state.r + by, 0, arrays.rois.shape[0] - 1), cell: null});
  });
  const choosePoint = (x, y) => {
    const boxes = drawnBoxes(roi, arrays, state.r);
    const bin = {ph: between(boxes.rows, y), pw: between(boxes.columns, x)};
    set({...(bin.ph !== null && bin.pw !== null ? bin : {}), cell: backward ? cellAt(arrays.map, x, y) : null});
  };
  views.map.frame.addEventListener("click", (event) => choosePoint(...views.map.at(event)));
  const moveBin = ([x, y]) =>
    set({ph: clamp(state.ph + y, 0, pooledH - 1), pw: clamp(state.pw + x, 0, pooledW - 1)});
  views.map.frame.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (!by) return;
    if (!backward) return moveBin(by);
    const [, height, width] = arrays.map.shape;
    const {rows, columns} = drawnBoxes(roi, arrays, state.r);
    const from = state.cell ?? {h: Math.floor(rows[state.ph]), w: Math.floor(columns[state.pw])};
    choosePoint(clamp(from.w + by[0], 0, width - 1) + 0.5, clamp(from.h + by[1], 0, height - 1) + 0.5);
  });
  views.output.frame.addEventListener("click", (event) => {
    const [x, y] = views.output.at(event).map(Math.floor);
    if (x >= 0 && y >= 0 && x < pooledW && y < pooledH) set({ph: y, pw: x});
  });
  views.output.frame.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (by) moveBin(by);
  });
}

/** The cell of the map around a point, or null. */
function cellAt(map, x, y) {
  const [, height, width] = map.shape;
  const [h, w] = [Math.floor(y), Math.floor(x)];
  return h >= 0 && w >= 0 && h < height && w < width ? {h, w} : null;
}

const imageScale = () => trace.image?.scale ?? 1;

/** The interval of rising edges that holds v, or null. */
function between(edges, v) {
  const i = edges.findIndex((edge, k) => k + 1 < edges.length && edge <= v && v < edges[k + 1]);
  return i < 0 ? null : i;
}

/** The smallest roi around a point of the net's input, of those shown; if it is chosen already, the next larger one. */
function roiAt(arrays, [x, y], current, isShown = () => true) {
  const around = [];
  for (let r = 0; r < arrays.rois.shape[0]; r++) {
    const [, x1, y1, x2, y2] = row(arrays.rois, r);
    if (isShown(r) && x1 <= x && x <= x2 && y1 <= y && y <= y2) around.push([(x2 - x1) * (y2 - y1), r]);
  }
  around.sort((a, b) => a[0] - b[0]);
  const at = around.findIndex(([, r]) => r === current);
  return around.length ? around[(at + 1) % around.length][1] : null; // at is -1 for a roi elsewhere: the smallest
}

function legend(roi, backward) {
  const keys = [
    ["dashed", "the roi on the image, to the end of its last pixel"],
    ["grid", readsBins(roi) ? "the bins' edges before rounding (dashed) and the cells they take (solid)" : "the bins"],
    ["chosen", "the chosen bin"],
    readsBins(roi) ? null : ["sample", "samples"],
    takesMaximum(roi) ? ["winner", "the maximum"] : null,
    backward ? [null, "Click a cell of the map to see its gradient from each bin."] : null,
  ].filter(Boolean);
  return [legendOf(keys), el("p", {class: "quiet conventions"}, CONVENTIONS[roi.kind])];
}

const MOST_CONTRIBUTIONS = 20;

function contributionPart(roi, arrays, state) {
  const {h, w} = state.cell;
  const found = contributions(roi, arrays, state.c, h, w, isPositionSensitive(roi) ? [state.ph, state.pw] : null);
  const total = found.reduce((sum, {factor, dy}) => sum + factor * dy, 0);
  const lines = found.slice(0, MOST_CONTRIBUTIONS).map(({r, ph, pw, factor, dy}) => {
    return `roi ${r}, bin (${ph}, ${pw}): ${number(factor, 5)} × ${number(dy, 5)} = ${number(factor * dy, 5)}`;
  });
  if (found.length > MOST_CONTRIBUTIONS) lines.push(`… and ${found.length - MOST_CONTRIBUTIONS} more`);
  const channel = mapChannel(roi, state.c, state.ph, state.pw);
  const [stored, height, width] = arrays.map.shape;
  if (arrays.dx && channel < stored)
    lines.push(`the layer's dx: ${number(arrays.dx[(channel * height + h) * width + w], 7)}`);
  return {
    title: `Gradient of cell [${h}, ${w}]`,
    lines: found.length ? [...lines, `sum: ${number(total, 7)}`] : ["0: no bin depends on this cell"],
  };
}
