// The page: its state, its views, its start.

const state = {view: "layers", layer: 0, step: null};
const views = [];

function show(change) {
  Object.assign(state, change);
  for (const draw of views) draw(state);
}

const goTo = (step) => show({step, layer: trace.steps[step].layer, view: "layers"});

/** Select a layer, at its step of the current kind. */
function choose(layer) {
  const kind = state.step === null ? "forward" : trace.steps[state.step].kind;
  show({layer, step: stepFor(layer, kind), view: "layers"});
}

function header() {
  const {net, notes, error} = trace;
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
  if (notes.length) {
    opener.hidden = false;
    opener.textContent = `Notes (${notes.length})`;
    const items = notes.map((note) => el("li", {}, note));
    list.append(el("ul", {}, items));
    opener.addEventListener("click", () => {
      list.hidden = !list.hidden;
      opener.setAttribute("aria-expanded", String(!list.hidden));
    });
  }
  const result = document.getElementById("open-result");
  if (trace.detections && trace.image) {
    result.hidden = false;
    result.textContent = `Detections (${trace.detections.length})`;
    result.addEventListener("click", () => show({view: "result"}));
    views.push((now) => result.setAttribute("aria-pressed", String(now.view === "result")));
  }
  if (error) failure(error);
  theme(document.getElementById("theme"));
}

function failure(error) {
  const banner = document.getElementById("error");
  banner.hidden = false;
  const layer = trace.layers[error.layer];
  banner.append(
    el("strong", {}, layer ? `${KINDS[error.way] ?? error.way} of ${layer.name} (${layer.type}) failed. ` : "The net failed. "),
    error.message,
    layer ? el("button", {type: "button", onclick: () => choose(error.layer)}, "Show the layer") : null,
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

/** The initial state: at the layer that failed, else at the first forward. */
function firstPlace() {
  if (trace.error) return {layer: trace.error.layer, step: stepFor(trace.error.layer, "forward")};
  const forward = trace.steps.findIndex((step) => step.kind === "forward");
  const step = Math.max(forward, 0);
  return trace.steps.length ? {layer: trace.steps[step].layer, step} : {layer: 0, step: null};
}

header();
views.push(
  timelineView(document.getElementById("timeline"), goTo),
  graphView(document.getElementById("graph"), choose),
  panelView(document.getElementById("panel")),
);
if (trace.layers.length) show(firstPlace());
document.documentElement.dataset.ready = Math.round(performance.now());
