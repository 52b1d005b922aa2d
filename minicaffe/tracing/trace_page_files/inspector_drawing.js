// The drawings on the three stages of the inspector.

function drawImage(view, roi, arrays, state) {
  drawRois(view, roi, arrays, state.r);
  view.say(`roi ${state.r} of ${arrays.rois.shape[0]}`);
}

function drawMap(view, roi, arrays, state, bin, backward) {
  const [stored, height, width] = arrays.map.shape;
  const boxes = drawnBoxes(roi, arrays, state.r);
  const source = backward && arrays.dx ? arrays.dx : arrays.map;
  let range = [0, 0];
  if (bin.channel < stored) {
    range = rangeOf(source, bin.channel * height * width, height * width);
    view.paint(mapCanvas(source, bin.channel * height * width, height, width, ...range), 0, 0, width, height);
    view.say(`channel ${bin.channel}`);
  } else view.say(`channel ${bin.channel} is not in the page`);
  view.scale(bin.channel < stored ? range : null);
  if (state.close === "bin") {
    const [x1, y1, x2, y2] = readSpan(bin) ?? boxes.used;
    view.look(x1 - 0.5, y1 - 0.5, x2 - x1 + 1, y2 - y1 + 1);
  } else if (state.close === "map") view.look(0, 0, width, height);
  else {
    const [x1, y1, x2, y2] = state.around ?? surrounding([boxes.plain, boxes.used]);
    view.look(x1 - 1.5, y1 - 1.5, Math.max(x2 - x1, 1) + 3, Math.max(y2 - y1, 1) + 3);
  }
  view.draw(mapOverlay(roi, arrays, state, bin, boxes, backward, range, view.grain()));
}

/** The box around some boxes. */
const surrounding = (boxes) => [0, 1, 2, 3].map((i) => (i < 2 ? Math.min : Math.max)(...boxes.map((box) => box[i])));

/** The box around the cells that a bin reads, or null. */
function readSpan(bin) {
  const cells = cellsRead(bin);
  if (!cells.length) return null;
  const rows = cells.map((cell) => cell.h);
  const columns = cells.map((cell) => cell.w);
  return [Math.min(...columns), Math.min(...rows), Math.max(...columns) + 1, Math.max(...rows) + 1];
}

function mapOverlay(roi, arrays, state, bin, boxes, backward, range, grain) {
  const [, height, width] = arrays.map.shape;
  const line = (x1, y1, x2, y2, name) => svg("line", {x1, y1, x2, y2, class: name});
  const [left, top, right, bottom] = boxes.used;
  const edges = [
    ...boxes.rows.map((y) => line(left, y, right, y, "edge")),
    ...boxes.columns.map((x) => line(x, top, x, bottom, "edge")),
  ];
  const best = bin.items[bin.best];
  const facts = {
    "data-channel": bin.channel,
    "data-roi": state.r,
    "data-bin": `${state.ph},${state.pw}`,
    "data-value": bin.stored ? bin.value : "",
    "data-argmax": best ? `${best.h},${best.w}` : "",
  };
  const marks = [];
  if (readsBins(roi)) {
    const {h, w} = bin.bounds;
    Object.assign(facts, {"data-hstart": h[0], "data-hend": h[1], "data-wstart": w[0], "data-wend": w[1]});
    marks.push(wholeBins(roi, arrays, state.r), box(w[0], h[0], w[1], h[1], {class: "bin"}));
  } else {
    Object.assign(facts, {"data-samples": bin.items.map((item) => `${item.h},${item.w}`).join(";")});
    const [[y1, y2], [x1, x2]] = [boxes.rows.slice(state.ph), boxes.columns.slice(state.pw)];
    marks.push(box(x1, y1, x2, y2, {class: "bin"}), cellBoxes(cellsRead(bin), "read"));
    marks.push(bin.items.map((item) => svg("circle", {cx: item.w + 0.5, cy: item.h + 0.5, r: 3.2 * grain, class: "sample"})));
  }
  if (best) marks.push(svg("circle", {cx: best.w + 0.5, cy: best.h + 0.5, r: 0.46, class: "winner"}));
  const showsDx = backward && arrays.dx;
  if (showsDx) marks.push(cellBoxes(gradientFactors(roi, bin), "gets"));
  if (backward && state.cell) marks.push(cellBoxes([state.cell], "asked"));
  const values = showsDx ? arrays.dx : arrays.map;
  const cells = bin.stored
    ? cellsRead(bin).map(({h, w}) => ({
        h,
        w,
        value: values[(bin.channel * height + h) * width + w],
        strong: best && readsBins(roi) && best.h === h && best.w === w,
      }))
    : [];
  return svg(
    "g",
    {class: "overlay", ...facts},
    box(0, 0, width, height, {class: "area"}),
    edges,
    otherRois(roi, arrays, state.r),
    box(...boxes.plain, {class: "halo thin"}),
    box(...boxes.plain, {class: "plain"}),
    marks,
    cellTexts(cells, range, grain),
  );
}

/** The other rois of the map, seen while the mouse is on them in another view. */
const otherRois = (roi, arrays, r) =>
  Array.from({length: arrays.rois.shape[0]}, (_, k) =>
    k === r ? null : box(...drawnBoxes(roi, arrays, k).plain, {class: "plain", visibility: "hidden", "data-roi": k}),
  );

/** The cells that each bin of a roi takes, as thin boxes. */
function wholeBins(roi, arrays, r) {
  const [height, width] = roi.pooled;
  const lines = [];
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
  for (const item of bin.items)
    for (const cell of item.cells) if (cell.h >= 0 && cell.w >= 0) found.set(`${cell.h},${cell.w}`, cell);
  return [...found.values()];
}

const cellBoxes = (cells, name) => cells.map(({h, w}) => box(w, h, w + 1, h + 1, {class: name}));

function drawOutput(view, roi, arrays, state, backward) {
  const [height, width] = roi.pooled;
  const values = backward && arrays.dy ? arrays.dy : arrays.output;
  view.look(-0.1, -0.1, width + 0.2, height + 0.2);
  const first = outputIndex(roi, arrays, {...state, ph: 0, pw: 0});
  const cells = [];
  let range = [0, 0];
  if (values && first !== null) {
    range = rangeOf(values, first, height * width);
    view.paint(mapCanvas(values, first, height, width, ...range), 0, 0, width, height);
    for (let h = 0; h < height; h++)
      for (let w = 0; w < width; w++)
        cells.push({h, w, value: values[first + h * width + w], strong: h === state.ph && w === state.pw});
    const value = number(values[first + state.ph * width + state.pw]);
    view.say(`roi ${state.r}, channel ${state.c}, bin (${state.ph}, ${state.pw}) = ${value}`);
  } else view.say(`channel ${state.c} is not in the page`);
  view.scale(values && first !== null ? range : null);
  view.draw(
    box(0, 0, width, height, {class: "area"}),
    cellTexts(cells, range, view.grain()),
    cellBoxes([{h: state.ph, w: state.pw}], "halo"),
    box(state.pw, state.ph, state.pw + 1, state.ph + 1, {class: "chosen", "data-bin": `${state.ph},${state.pw}`}),
  );
}
