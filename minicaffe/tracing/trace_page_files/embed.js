// A part of the page alone, for a frame in another page: ?embed=inspector, ?embed=detections (or classes), ?embed=conv1 (a layer's panel).

const embedded = new URLSearchParams(location.search).get("embed");

const RESULTS = ["detections", "classes"];

/** Show only what the address asks for, and a link to the whole page. */
function embed() {
  if (embedded === null) return;
  document.body.dataset.embed = ["inspector", ...RESULTS].includes(embedded) ? embedded : "layer";
  const whole = el("a", {target: "_blank", rel: "noopener", href: location.pathname}, "Open the whole page");
  const follow = () => (whole.href = location.href.replace(location.search, ""));
  whole.addEventListener("pointerdown", follow);
  whole.addEventListener("focus", follow);
  const lacks = {inspector: "ROI layer", detections: "detections", classes: "classes"}[embedded] ?? `layer ${embedded}`;
  const lost = Object.keys(embeddedPlace()).length === 0;
  const text = lost ? `This page has no ${lacks}.` : trace.net.name || trace.net.file;
  document.body.append(el("footer", {class: "whole-page row"}, quiet(text), whole));
}

/** The place that ?embed= names; {} where the page is whole. */
function embeddedPlace() {
  if (embedded === null) return {};
  if (RESULTS.includes(embedded)) return resultKind() === embedded ? {view: "result"} : {};
  const wanted = embedded === "inspector" ? (layer) => layer.roi : (layer) => layer.name === embedded;
  const layer = trace.layers.findIndex(wanted);
  return layer < 0 ? {} : {view: "layers", layer, step: stepFor(layer, "forward")};
}
