// The same roi in all views: elements with data-roi of the roi under the mouse stand out. The roi chosen in one layer's
// inspector is the first one that the next inspector shows.

const roiStyle = document.head.appendChild(el("style"));
const lastRoi = {r: 0};

/** Let a roi stand out; null: none. */
function hoverRoi(r) {
  roiStyle.textContent = r === null ? "" : `rect[data-roi="${r}"] { ${ROI_BOX} } tr[data-roi="${r}"] { ${ROI_ROW} }`;
}

const ROI_BOX = "stroke: #ffd21a !important; stroke-opacity: 1 !important; stroke-width: 2.6 !important; visibility: visible;";
const ROI_ROW = "background: var(--accent-soft); outline: 1px solid var(--accent);";

document.addEventListener("pointerover", (event) => {
  const element = event.target.closest?.("rect[data-roi], tr[data-roi]");
  hoverRoi(element ? Number(element.dataset.roi) : null);
});

/** The first layer with rois, if any; its rois are those of the page. */
const roiLayer = ofTrace(() => trace.layers.find((layer) => layer.roi?.rois?.shape[0]));

/** The blobs with one item for each of these rois: the rois, what is pooled over them, and what is made of that. */
const perRoi = ofTrace(() => {
  const names = new Set();
  const count = roiLayer()?.roi.rois.shape[0];
  if (!count || trace.layers.some((layer) => layer.roi && layer.roi.rois.shape[0] !== count)) return names;
  const add = (i, name) => (shapesOf[i].top[name]?.[0] ?? shapesOf[i].bottom[name]?.[0]) === count && names.add(name);
  trace.layers.forEach((layer, i) => {
    if (layer.roi) add(i, layer.bottoms[1]);
  });
  for (let i = trace.layers.length - 1; i >= 0; i--) {
    const layer = trace.layers[i]; // the rois before a Split
    if (layer.split && layer.tops.some((name) => names.has(name))) add(i, layer.bottoms[0]);
  }
  trace.layers.forEach((layer, i) => {
    if (layer.roi || layer.bottoms.some((name) => names.has(name))) for (const name of layer.tops) add(i, name);
  });
  return names;
});

/** The rois on the image, beside the numbers of a blob in perRoi: hovered here or there. */
function roisStage() {
  const view = stage(trace.image ? "Rois on the image" : "Rois");
  const {roi} = roiLayer();
  roiArrays(roi).then((arrays) => {
    drawRois(view, roi, arrays, null);
    view.frame.addEventListener("pointermove", (event) => hoverRoi(roiUnder(view, arrays, event, null)));
  });
  if (trace.image) photoCanvas().then((canvas) => view.paint(canvas, 0, 0, trace.image.width, trace.image.height));
  return el("div", {class: "rois-stage"}, view.figure);
}

/** The smallest roi under a mouse event, or if it is `current` the next larger one; null for none. */
const roiUnder = (view, arrays, event, current) =>
  roiAt(
    arrays,
    view.at(event).map((v) => v * imageScale()),
    current,
  );

/** Width and height of the image on the page, or of the map in the net's input. */
function inputSize(roi, arrays) {
  const [, height, width] = arrays.map.shape;
  return trace.image ? [trace.image.width, trace.image.height] : [width / roi.spatial_scale, height / roi.spatial_scale];
}

/** All rois on the image, all but one faintly. */
function drawRois(view, roi, arrays, chosen) {
  const count = arrays.rois.shape[0];
  const size = inputSize(roi, arrays);
  view.look(0, 0, ...size);
  const faint = clamp(12 / count, 0.08, 0.5); // 300 rois must not hide the image
  const corners = (r) => [...row(arrays.rois, r)].slice(1).map((v) => v / imageScale());
  const others = Array.from({length: count}, (_, r) =>
    r === chosen ? null : box(...corners(r), {class: "other", "stroke-opacity": faint, "data-roi": r}),
  );
  const drawn = [{class: "halo"}, {class: "chosen", "data-roi": chosen}];
  const own = chosen === null ? [] : drawn.map((attributes) => box(...corners(chosen), attributes));
  view.draw(trace.image ? null : box(0, 0, ...size, {class: "area"}), others, own);
}
