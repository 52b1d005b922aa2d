// One roi, dragged on the image, through every kind of ROI pooling side by side, on the map of an ROI layer.

/** Closed at first; made when it is opened. chosen(): the roi and the bin of the inspector. */
function poolsView(roi, arrays, chosen) {
  const details = el("details", {class: "inner pools"}, el("summary", {}, "The same roi through every pool"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(...poolsBody(roi, arrays, chosen()));
  });
  return details;
}

function poolsBody(roi, arrays, {r, c, ph, pw}) {
  const group = roi.group ?? roi.pooled[0];
  const stored = arrays.map.shape[0];
  const bounds = inputSize(roi, arrays).map((v) => v * imageScale()); // a roi may lie outside, but not too far to see
  const asked = {corners: [...row(arrays.rois, r)].slice(1), c, ph, pw, aligned: false, ratio: 2};
  const set = (change) => {
    Object.assign(asked, change);
    asked.corners = asked.corners.map((v, i) => clamp(v, -bounds[i % 2], 2 * bounds[i % 2]));
    draw();
  };
  const photo = stage(trace.image ? "Image" : "Input area", {
    tabindex: 0,
    role: "application",
    "aria-label": "The roi: drag it, or a corner of it; arrow keys move it, with Shift its end",
  });
  const pools = POOLS.map((pool) => {
    const [area, words] = ["mono area-line", "mono"].map((name) => el("p", {class: name}));
    return {...pool, view: stage(pool.name), values: stage("The values"), area, words};
  });
  const settingsOf = (pool) => {
    const sensitive = pool.kind.startsWith("psroi");
    const channels = sensitive && !roi.group ? {cycle: stored} : {};
    const pooled = sensitive ? [group, group] : roi.pooled;
    return {...pool, ...channels, spatial_scale: roi.spatial_scale, item: roi.item, pooled, group, ...asked};
  };
  const draw = () => {
    fields.follow();
    drawDragged(photo, roi, arrays, asked.corners);
    const settings = pools.map(settingsOf);
    const planned = settings.map((each) => plannedArrays(each, asked.corners.map(f32), arrays.map));
    const boxes = planned.map((each, i) => drawnBoxes(settings[i], each, 0));
    const around = surrounding(boxes.flatMap(({plain, used}) => [plain, used]));
    pools.forEach((pool, i) => {
      const [ph, pw] = [asked.ph, asked.pw].map((p, axis) => Math.min(p, settings[i].pooled[axis] - 1));
      drawPool(pool, settings[i], planned[i], {...asked, r: 0, around, ph, pw});
    });
  };
  const fields = poolFields(roi, arrays, asked, set);
  drag(photo, () => asked.corners, (corners) => set({corners}));
  keysMove(photo.frame, () => asked.corners, (corners) => set({corners}));
  for (const pool of pools) {
    pool.values.frame.addEventListener("click", (event) => {
      const [x, y] = pool.values.at(event).map(Math.floor);
      const [height, width] = settingsOf(pool).pooled;
      if (x >= 0 && y >= 0 && x < width && y < height) set({ph: y, pw: x});
    });
  }
  if (trace.image) photoCanvas().then((canvas) => photo.paint(canvas, 0, 0, trace.image.width, trace.image.height));
  new ResizeObserver(draw).observe(photo.frame); // first when it is on the page: marks are drawn in its pixels
  const [height, width] = roi.pooled;
  const maps = roi.group
    ? "This map is made for position-sensitive pools: the others take one of its channels, as if it were any map."
    : `This is no score map: the position-sensitive pools take its ${stored} channels in turn, for ${group} × ${group} bins.`;
  return [
    el("p", {class: "quiet"}, `Each pool cuts the roi into ${height} × ${width} bins, on the map above. ${maps}`),
    el(
      "p",
      {class: "quiet"},
      "The white dashed frame is the same in all: the roi on the image, from the start of its first pixel to the end of its last. " +
        "The blue lines divide what the pool makes of it.",
    ),
    el("div", {class: "pool-head"}, photo.figure, fields.element),
    el(
      "div",
      {class: "pool-list"},
      pools.map((pool) => el("section", {"data-pool": pool.kind}, poolParts(pool))),
    ),
  ];
}

/** Fields for the corners, the channel and the bin, and Mask R-CNN's settings. */
function poolFields(roi, arrays, asked, set) {
  const corners = ["x1", "y1", "x2", "y2"].map((name, i) => {
    const field = el("input", {type: "number", step: 0.5, "aria-label": `roi ${name}`});
    field.addEventListener("change", () => {
      const value = Number(field.value);
      if (field.value !== "" && Number.isFinite(value)) set({corners: asked.corners.with(i, value)});
    });
    return {field, name};
  });
  const sliders = {
    c: slider("pools' channel", 0, roi.output_channels - 1, asked.c, (c) => set({c})),
    ph: slider("pools' bin row", 0, roi.pooled[0] - 1, asked.ph, (ph) => set({ph})),
    pw: slider("pools' bin column", 0, roi.pooled[1] - 1, asked.pw, (pw) => set({pw})),
    ratio: slider("AVE's sampling_ratio", 0, 8, asked.ratio, (ratio) => set({ratio})),
  };
  const aligned = el("input", {type: "checkbox", onchange: () => set({aligned: aligned.checked})});
  return {
    element: el(
      "div",
      {class: "sliders"},
      el("div", {class: "row"}, corners.map(({field, name}) => el("label", {class: "row"}, name, field))),
      Object.values(sliders),
      el("label", {class: "row"}, aligned, "AVE's aligned"),
    ),
    follow() {
      corners.forEach(({field}, i) => {
        field.value = Number(asked.corners[i].toFixed(3));
      });
      for (const name of Object.keys(sliders)) sliders[name].set(asked[name]);
    },
  };
}

/** Drag the roi, or the corner of it that is near. */
function drag(view, corners, set) {
  view.frame.style.touchAction = "none";
  const place = (event) => view.at(event).map((v) => v * imageScale());
  let held = null;
  view.frame.addEventListener("pointerdown", (event) => {
    view.frame.setPointerCapture(event.pointerId);
    const [x, y] = place(event);
    const from = corners();
    const near = 14 * view.grain() * imageScale();
    const pick = (v, a, b) => (Math.abs(v - a) < near ? a : Math.abs(v - b) < near ? b : null);
    const [px, py] = [pick(x, from[0], from[2]), pick(y, from[1], from[3])];
    const moved = px !== null && py !== null ? [px === from[0], py === from[1], px !== from[0], py !== from[1]] : [1, 1, 1, 1];
    held = {x, y, from, moved};
  });
  view.frame.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = place(event);
    const by = [x - held.x, y - held.y];
    set(held.from.map((v, i) => (held.moved[i] ? Math.round(10 * (v + by[i % 2])) / 10 : v))); // tenths: easy to read
  });
  for (const end of ["pointerup", "pointercancel"]) view.frame.addEventListener(end, () => (held = null));
}

function drawDragged(view, roi, arrays, corners) {
  const size = inputSize(roi, arrays);
  view.look(0, 0, ...size);
  const [x1, y1, x2, y2] = corners.map((v) => v / imageScale());
  const [w, h] = [4, 4].map((v) => v * view.grain());
  const handles = [x1, x2].flatMap((x) => [y1, y2].map((y) => box(x - w, y - h, x + w, y + h, {class: "handle"})));
  const edges = [{class: "halo"}, {class: "chosen"}].map((attributes) => box(x1, y1, x2, y2, attributes));
  view.draw(trace.image ? null : box(0, 0, ...size, {class: "area"}), edges, handles);
}

const poolParts = ({kind, view, values, area, words}) => [
  view.figure,
  el("p", {class: "quiet conventions"}, CONVENTIONS[kind]),
  area,
  values.figure,
  words,
];

function drawPool({view, values, area, words}, roi, arrays, at) {
  const [height, width] = roi.pooled;
  const bins = Array.from({length: height * width}, (_, i) => readBin(roi, arrays, 0, at.c, Math.floor(i / width), i % width));
  const bin = bins[at.ph * width + at.pw];
  drawMap(view, roi, arrays, at, bin, false);
  area.textContent = areaLine(drawnBoxes(roi, arrays, 0));
  const numbers = bins.map((each) => (each.stored ? each.value : NaN));
  const range = rangeOf(numbers, 0, numbers.length);
  values.look(-0.1, -0.1, width + 0.2, height + 0.2);
  values.paint(mapCanvas(numbers, 0, height, width, ...range), 0, 0, width, height);
  values.scale(range);
  values.say(`bin (${at.ph}, ${at.pw}) = ${number(bin.value, 7)}`);
  const cells = numbers.map((value, i) => ({h: Math.floor(i / width), w: i % width, value, strong: false}));
  values.draw(
    cellTexts(cells, range, values.grain()),
    box(at.pw, at.ph, at.pw + 1, at.ph + 1, {class: "chosen", "data-values": numbers.join(",")}),
  );
  const scaled = row(arrays.rois, 0).subarray(1).map((v) => v * f32(roi.spatial_scale));
  if (!bin.stored) {
    words.textContent = `channel ${bin.channel} of the map is not in the page`;
    return;
  }
  const count = `${bin.items.length} ${readsBins(roi) ? "cell" : "sample"}${bin.items.length === 1 ? "" : "s"}`;
  const result = takesMaximum(roi) ? `the greatest of ${count}` : `the sum of ${count} / ${number(bin.divisor)}`;
  words.textContent = `${roundingLine(roi, arrays, 0, scaled)}. Bin (${at.ph}, ${at.pw}): ${result} = ${number(bin.value, 7)}`;
}
