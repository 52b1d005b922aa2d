// The page: its state, its views, its start.

const state = {view: "layers", layer: 0, step: null, detection: null};
let views = [];
let shown = new AbortController(); // aborted when the views give way to those of another trace

function show(change) {
  Object.assign(state, change);
  for (const draw of views) draw(state);
  remember();
}

const goTo = (step) => show({step, layer: trace.steps[step].layer, view: "layers"});

/** Select a layer, at its step of the current kind. */
function choose(layer) {
  const kind = state.step === null ? "forward" : trace.steps[state.step].kind;
  show({layer, step: stepFor(layer, kind), view: "layers"});
}

function header() {
  const {net, notes, error} = trace;
  const banner = document.getElementById("error");
  banner.hidden = !error;
  const facts = [
    net.file,
    net.phase,
    net.dtype,
    net.device,
    net.weights.length ? `weights ${net.weights.join(", ")}` : "no weights",
    `minicaffe ${trace.minicaffe}`,
  ];
  document.getElementById("net-facts").textContent = facts.filter(Boolean).join(" · ");
  const list = document.getElementById("notes");
  const opener = document.getElementById("open-notes");
  opener.hidden = !notes.length;
  opener.textContent = `Notes (${notes.length})`;
  list.replaceChildren(el("ul", {}, notes.map((note) => el("li", {}, note))));
  const result = document.getElementById("open-result");
  const kind = resultKind();
  result.hidden = !kind;
  if (kind === "classes") result.textContent = "Classes";
  if (kind === "detections") result.textContent = `Detections (${trace.detections.filter(isUsual).length})`;
  if (error) failure(banner, error);
}

/** The buttons of the header, which stay when the trace changes. */
function listenToHeader() {
  const list = document.getElementById("notes");
  const opener = document.getElementById("open-notes");
  opener.addEventListener("click", () => {
    list.hidden = !list.hidden;
    opener.setAttribute("aria-expanded", String(!list.hidden));
  });
  document.getElementById("open-result").addEventListener("click", () => {
    show({view: "result"});
    panelIntoView();
  });
  theme(document.getElementById("theme"));
}

/** Where the panel is below the graph, bring it into view. */
function panelIntoView() {
  const panel = document.getElementById("panel");
  if (getComputedStyle(panel.parentElement).display === "block") panel.scrollIntoView();
}

function panelAfterClick() {
  document.getElementById("graph").addEventListener("click", (event) => event.target.closest(".node") && panelIntoView());
}

const resultView = (button) => (now) => button.setAttribute("aria-pressed", String(now.view === "result"));

function failure(banner, error) {
  const layer = trace.layers[error.layer];
  banner.replaceChildren(
    el("strong", {}, layer ? `${KINDS[error.way] ?? error.way} of ${layer.name} (${layer.type}) failed. ` : "The net failed. "),
    error.message,
    layer ? el("button", {type: "button", onclick: () => choose(error.layer)}, "Show the layer") : "",
  );
}

/** Light, dark, or the system's setting. */
function theme(control) {
  const order = {Auto: "system setting", Light: "light", Dark: "dark"};
  control.addEventListener("click", () => {
    const names = Object.keys(order);
    const next = names[(names.indexOf(control.textContent) + 1) % names.length];
    control.textContent = next;
    control.setAttribute("aria-label", `Colours: ${order[next]}`);
    if (next === "Auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next.toLowerCase();
  });
}

/** The initial state: at the layer that failed, else at what the net makes of the photo, else at the first forward. */
function firstPlace() {
  if (trace.error) return {layer: trace.error.layer, step: stepFor(trace.error.layer, "forward")};
  const forward = trace.steps.findIndex((step) => step.kind === "forward");
  const step = Math.max(forward, 0);
  const view = resultKind() ? "result" : "layers";
  return trace.steps.length ? {layer: trace.steps[step].layer, step, view} : {layer: 0, step: null};
}

/** What the page's address names, else the first place. */
const addressedPlace = () => ({...firstPlace(), ...embeddedPlace(), ...addressed()});

/** Make the views of the trace. graph: that of the same net before, to keep; place: what to show. */
function open(graph, place) {
  shown.abort();
  shown = new AbortController();
  header();
  const panel = document.getElementById("panel");
  const roots = ["timeline", "graph"].map((id) => document.getElementById(id));
  let timeline;
  withFocus(roots[0], () => {
    roots[0].replaceChildren();
    timeline = timelineView(roots[0], goTo, shown.signal);
  });
  if (!graph) roots[1].replaceChildren();
  views = [
    timeline,
    graph ?? graphView(roots[1], choose),
    panelView(panel),
    resultView(document.getElementById("open-result")),
  ];
  if (trace.layers.length) show(place);
}

/** The keys of this page, by what has the focus. */
function pageKeys() {
  const isRoi = trace.layers.some((layer) => layer.roi);
  const hasTargets = trace.layers.some((layer) => layer.targets);
  return {
    Anywhere: [["← →", "the step before, after"], ["Home End", "the first, the last step"], ["Space", "play, pause"], ["?", "this list"]],
    "In the graph": [["↑ ↓", "the layer before, after"]],
    "On maps": [["← → ↑ ↓", "choose a cell"], ["[ ]", "the channel before, after"], ["Esc", "leave the cell"]],
    "In the ROI inspector": isRoi && [
      ["[ ]", "on the image: the roi before, after"],
      ["← → ↑ ↓", "on the map and the output: choose the bin; in Backward on the map: a cell"],
      ...(trace.live ? [["← → ↑ ↓", "on the image: move the roi; with Shift its end"]] : []),
    ],
    "On anchors and sampled rois": hasTargets && [
      ["← → ↑ ↓", "choose a cell of anchors"],
      ["[ ]", "the anchor or the roi before, after"],
      ["Esc", "leave it"],
    ],
    "In a tour": trace.tours.length ? [["← →", "the stop before, after"], ["Esc", "end the tour"]] : null,
    "In the editor": trace.live && [["Ctrl Enter", "run"]],
  };
}

document.getElementById("loading").remove();
listenToHeader();
offerKeys(document.getElementById("open-keys"), pageKeys);
panelAfterClick();
offerTours(document.querySelector(".actions"));
followAddress();
embed();
open(null, addressedPlace());
if (state.view === "result") panelIntoView();
addEventListener("popstate", () => {
  followAddress();
  show({view: "layers", detection: null, turn: performance.now(), ...addressedPlace()});
});
if (trace.live) liveView(document.getElementById("live"));
document.documentElement.dataset.ready = Math.round(performance.now());
