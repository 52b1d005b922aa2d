// The page's state in its address, #layer=conv1&step=forward&roi=3: to be kept, sent, and gone back to.

const QUICK = 1000; // ms: a state shown for less, as while playing, gets no history entry

let rememberedAt = -QUICK;

/** Put the state into the address; in a new entry of the history, unless it is a detail or comes quickly. */
function remember(isDetail = false) {
  const address = `#${addressOf(state)}`;
  if (address === location.hash) return;
  const now = performance.now();
  const other = !isDetail && !embedded && location.hash !== "" && now - rememberedAt > QUICK;
  rememberedAt = now;
  try {
    history[other ? "pushState" : "replaceState"](null, "", address);
  } catch {
    // a frame without an address, such as a notebook's, refuses
  }
}

function addressOf({view, layer: i, step, detection}) {
  const layer = trace.layers[i];
  const words = new URLSearchParams({layer: layer.name});
  if (step !== null) words.set("step", trace.steps[step].kind);
  if (layer.roi) {
    const usual = usualPlace(layer.roi);
    const {c, ph, pw} = chosen[layer.name] ?? usual;
    words.set("roi", lastRoi.r);
    if (c !== usual.c) words.set("channel", c);
    if (ph !== usual.ph || pw !== usual.pw) words.set("bin", `${ph},${pw}`);
  }
  if (layer.targets) for (const [name, value] of Object.entries(targetWords(layer))) words.set(name, value);
  if (view !== "layers") {
    words.set("view", view);
    if (detection !== null) words.set("detection", detection);
  }
  for (const [name, value] of Object.entries(guidedWords())) words.set(name, value);
  return words;
}

/** The place that the page's address names; {} where it names none of this net. */
function addressed() {
  const words = new URLSearchParams(location.hash.slice(1));
  const stop = stopOf(words);
  return placeOf(words.has("layer") || !stop ? words : new URLSearchParams(stop.address));
}

/** The place that an address names; {} where it names none. Its roi, channel and bin become the chosen ones. */
function placeOf(words) {
  const i = trace.layers.findIndex((other) => other.name === words.get("layer"));
  if (i < 0) return {};
  const whole = (text) => (/^\d+$/.test(text ?? "") ? Number(text) : null);
  lastRoi.r = whole(words.get("roi")) ?? lastRoi.r;
  const {name, roi, targets} = trace.layers[i];
  if (targets) takeTargetWords(trace.layers[i], words);
  if (roi) {
    const [ph, pw] = (words.get("bin") ?? "").split(",").map(whole);
    const place = usualPlace(roi);
    chosen[name] = {...place, c: whole(words.get("channel")) ?? 0, ph: ph ?? place.ph, pw: pw ?? place.pw};
  }
  const step = stepFor(i, words.get("step") in KINDS ? words.get("step") : "forward");
  const result = words.get("view") === "result" && resultKind();
  return {layer: i, step, view: result ? "result" : "layers", detection: whole(words.get("detection"))};
}
