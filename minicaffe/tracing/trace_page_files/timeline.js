// The steps in order: a bar for the time of each, a line for memory; buttons and keys move between steps.

const PLAY_MS = 350;

/** How the steps are walked by buttons, keys and play: "all", or the kinds of steps; times the usual speed; with the setup. */
const walking = {kinds: "all", speed: 1, setup: false};

/** How many of the first steps set the net up; 0 if it went no further. */
function setupCount(steps) {
  const [[name, , end] = [], next] = spans(steps);
  return name === SETUP && next ? end : 0;
}

/** The steps, those of the setup if they are asked for. ended: an AbortSignal, after which the view is no longer shown. */
function timelineView(root, goTo, ended) {
  const setup = setupCount(trace.steps);
  root.hidden = !trace.steps.length;
  if (root.hidden) return () => {}; // the first layer failed in its setup
  let [latest, first, drawn, draw] = [];
  const make = () => {
    drawn?.abort();
    drawn = new AbortController();
    withFocus(root, () => {
      root.replaceChildren();
      draw = stepsView(root, first, setup ? setupSwitch() : null, goTo, drawn.signal);
    });
  };
  const follow = (state) => {
    latest = state;
    if (state.step !== null && state.step < setup) walking.setup = true;
    const from = walking.setup ? 0 : setup;
    if (from !== first) {
      first = from;
      make();
    }
    draw(state);
  };
  const setupSwitch = () => {
    const onchange = ({target}) => {
      walking.setup = target.checked;
      if (!walking.setup && latest.step < setup) goTo(setup);
      else follow(latest);
    };
    const box = el("input", {type: "checkbox", role: "switch", checked: walking.setup, onchange});
    return el("label", {class: "row", title: "Show the steps that set the net up"}, box, "Setup");
  };
  ended.addEventListener("abort", () => drawn?.abort());
  return follow;
}

/** The steps from `first` on; setup: the switch that shows those before. */
function stepsView(root, first, setup, show, ended) {
  const steps = trace.steps.slice(first);
  const goTo = (step) => show(first + step);
  const canvas = el("canvas", {
    class: "bars",
    role: "slider",
    tabindex: 0,
    "aria-label": "Step",
    "aria-valuemin": 1,
    "aria-valuemax": steps.length,
  });
  const most = Math.max(...steps.map((step) => step.ms ?? 0), 1e-9);
  const memory = Math.max(...steps.map((step) => step.bytes), 1);
  const timed = steps.some((step) => step.ms !== null);
  let current = 0;
  let playing = null;

  const stop = () => {
    clearInterval(playing);
    playing = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play");
  };
  const toggle = () => {
    if (playing) return stop();
    if (next(1) === current) goTo(next(-steps.length));
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
    start();
  };
  const start = () => {
    clearInterval(playing);
    playing = setInterval(() => (next(1) === current ? stop() : goTo(next(1))), PLAY_MS / walking.speed);
  };
  /** The step `count` walked steps on, at most the last of them. */
  const next = (count) => {
    const walked = Array.from(steps.keys()).filter((i) => walking.kinds === "all" || walking.kinds.includes(steps[i].kind));
    const ahead = count > 0 ? walked.filter((i) => i > current) : walked.filter((i) => i < current).reverse();
    return ahead[Math.min(Math.abs(count), ahead.length) - 1] ?? current;
  };
  const to = (step) => {
    stop();
    goTo(clamp(step, 0, steps.length - 1));
  };
  const by = (count) => to(next(count));
  const play = button("▶", "Play", toggle, {class: "play"});
  const kinds = Object.keys(KINDS).filter((kind) => steps.some((step) => step.kind === kind));
  const jumps = kinds.map((kind) => {
    const first = steps.findIndex((step) => step.kind === kind);
    return button(KINDS[kind], `First ${KINDS[kind]}`, () => to(first), {class: "kind", "data-kind": kind});
  });
  const both = "forward backward";
  const found = Object.fromEntries(kinds.map((kind) => [kind, `${KINDS[kind]} only`]));
  const texts = {all: "Every step", ...found, ...(found.backward && {[both]: "Forward and Backward"})};
  if (!texts[walking.kinds]) walking.kinds = "all";
  const walk = choiceOf("Steps to walk", Object.entries(texts), walking.kinds, (value) => (walking.kinds = value));
  const speeds = [0.5, 1, 2, 4].map((speed) => [speed, `${speed}×`]);
  const speed = choiceOf("Speed", speeds, walking.speed, (value) => {
    walking.speed = Number(value);
    if (playing) start();
  });
  const label = el("p", {class: "step-label", "aria-live": "polite"});
  root.append(
    el(
      "div",
      {class: "row controls"},
      button("⇤", "First step (Home)", () => by(-steps.length)),
      button("‹", "Previous step (left arrow)", () => by(-1)),
      play,
      button("›", "Next step (right arrow)", () => by(1)),
      button("⇥", "Last step (End)", () => by(steps.length)),
      walk,
      speed,
      setup,
      el("span", {class: "row jumps"}, jumps),
      label,
    ),
    canvas,
    legendOf([
      ...(timed ? [["time", `time of a step, square root scale, up to ${timeText(most)}`]] : []),
      ["memory", `memory in use after it, up to ${byteText(memory)}`],
    ]),
  );

  const paint = () => {
    const {width, height} = canvas.getBoundingClientRect();
    const dense = window.devicePixelRatio || 1; // a canvas has device pixels, its style CSS pixels
    canvas.width = width * dense;
    canvas.height = height * dense;
    const context = canvas.getContext("2d");
    context.scale(dense, dense);
    paintBars(context, width, height, {steps, most, memory, current, colour: cssColours(root)});
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pick(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) pick(event);
  });
  const pick = (event) => {
    const at = canvas.getBoundingClientRect();
    to(Math.floor(((event.clientX - at.left) / at.width) * steps.length));
  };
  new ResizeObserver(paint).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint, {signal: ended});
  const themes = new MutationObserver(paint);
  themes.observe(document.documentElement, {attributes: true, attributeFilter: ["data-theme"]});

  const keys = {
    ArrowLeft: () => by(-1),
    ArrowRight: () => by(1),
    Home: () => by(-steps.length),
    End: () => by(steps.length),
    " ": toggle,
  };
  ended.addEventListener("abort", () => {
    themes.disconnect();
    stop();
  });
  pressKeys(keys, ended);

  return (state) => {
    if (state.step === null) return;
    current = state.step - first;
    const step = steps[current];
    const layer = trace.layers[step.layer];
    label.replaceChildren(
      el("strong", {}, `${KINDS[step.kind]} ${layer.name}`),
      quiet(` step ${current + 1} of ${steps.length} · ${timeText(step.ms)} · ${byteText(step.bytes)}`),
    );
    canvas.setAttribute("aria-valuenow", current + 1);
    canvas.setAttribute("aria-valuetext", label.textContent);
    for (const jump of jumps) jump.setAttribute("aria-pressed", jump.dataset.kind === step.kind);
    paint();
  };
}

/** The colours of the canvas, in the current theme. */
function cssColours(root) {
  const probe = root.appendChild(el("i", {hidden: true}));
  const colours = ["quiet", "faint", "accent", "bar", "bar-back", "memory"].map((name) => {
    probe.style.color = `var(--${name})`; // a canvas takes no variables: the computed colour
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(colours);
}

function paintBars(context, width, height, {steps, most, memory, current, colour}) {
  const top = 16;
  const floor = height - 1;
  const slot = width / steps.length;
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  for (const [name, first, end] of spans(steps)) {
    context.fillStyle = colour.faint;
    if (first) context.fillRect(first * slot, 0, 1, height);
    context.fillStyle = colour.quiet;
    if (context.measureText(name).width + 8 < (end - first) * slot) context.fillText(name, first * slot + 5, 11);
  }
  steps.forEach((step, i) => {
    const tall = Math.sqrt((step.ms ?? 0) / most) * (floor - top); // square root: a layer of 1 % of the longest still shows
    context.fillStyle = step.kind === "backward" ? colour["bar-back"] : colour.bar;
    const gap = slot > 4 ? 1 : 0;
    context.fillRect(i * slot + gap / 2, floor - Math.max(tall, 1), Math.max(slot - gap, 0.5), Math.max(tall, 1));
  });
  context.beginPath();
  steps.forEach((step, i) => {
    const y = floor - (step.bytes / memory) * (floor - top);
    context.lineTo(i * slot, y);
    context.lineTo((i + 1) * slot, y);
  });
  context.strokeStyle = colour.memory;
  context.lineWidth = 1.5;
  context.stroke();
  context.fillStyle = colour.accent;
  context.globalAlpha = 0.28;
  context.fillRect(current * slot + slot / 2 - Math.max(slot, 4) / 2, 0, Math.max(slot, 4), height);
  context.globalAlpha = 1;
  context.fillRect(current * slot + slot / 2 - 1, 0, 2, height);
}

const SETUP = "LayerSetUp and Reshape";

/** Groups of steps: [name, first, end]. Construction sets up and reshapes each layer; forward reshapes and runs each. */
function spans(steps) {
  const forward = steps.findIndex((step, i) =>
    [step, steps[i + 1]].some((next) => next?.kind === "forward" && next.layer === step.layer),
  );
  const group = (step, i) =>
    step.kind === "backward" ? "Backward" : forward >= 0 && i >= forward ? "Reshape and Forward" : SETUP;
  const runs = [];
  steps.forEach((step, i) => {
    const name = group(step, i);
    if (runs.at(-1)?.[0] === name) runs.at(-1)[2] = i + 1;
    else runs.push([name, i, i + 1]);
  });
  return runs;
}
