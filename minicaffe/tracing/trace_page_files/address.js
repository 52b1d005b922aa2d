// The page's address names what is shown, #layer=conv1&step=forward&roi=3: to be kept, sent, and gone back to.

const QUICK = 1000; // ms: what is shown for less, as when playing, is not gone back to

let rememberedAt = -QUICK;

/** Put the state into the address; in a new entry of the history, unless it is a detail or comes quickly. */
function remember(isDetail = false) {
  const {view, layer, step} = state;
  const words = new URLSearchParams({layer: trace.layers[layer].name});
  if (step !== null) words.set("step", trace.steps[step].kind);
  if (trace.layers[layer].roi) words.set("roi", lastRoi.r);
  if (view !== "layers") words.set("view", view);
  const address = `#${words}`;
  if (address === location.hash) return;
  const now = performance.now();
  const other = !isDetail && location.hash !== "" && now - rememberedAt > QUICK;
  rememberedAt = now;
  try {
    history[other ? "pushState" : "replaceState"](null, "", address);
  } catch {
    // in a frame without an address, as a notebook's
  }
}

/** The place that the address names; {} where it names none of this net. */
function addressed() {
  const words = new URLSearchParams(location.hash.slice(1));
  const layer = trace.layers.findIndex((other) => other.name === words.get("layer"));
  if (layer < 0) return {};
  const roi = Number(words.get("roi"));
  if (Number.isInteger(roi) && roi >= 0) lastRoi.r = roi;
  const step = stepFor(layer, words.get("step") in KINDS ? words.get("step") : "forward");
  return {layer, step, view: words.get("view") === "result" && trace.detections && trace.image ? "result" : "layers"};
}
