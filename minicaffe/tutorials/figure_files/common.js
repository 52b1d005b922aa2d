// What every figure uses: the page's root, numbers as text, sliders, boxes to drag.

const root = document.querySelector("main");

const f32 = Math.fround;

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** A number as text with a true minus sign. */
const written = (value, digits = 2) => value.toFixed(digits).replace("-", "−");

/** A number with at most two digits behind the point. */
const short = (value) => written(Number(value.toFixed(2)), 2).replace(/\.?0+$/, "");

/** The width and height of a box [x1, y1, x2, y2] in pixels, whose ends belong to it. */
const sidesOf = ([x1, y1, x2, y2]) => [x2 - x1 + 1, y2 - y1 + 1];

const areaOf = (box) => sidesOf(box).reduce((a, b) => a * b);

/** The overlap of two boxes: {inner, width, height, intersection, union, iou}. */
function overlapOf(a, b) {
  const inner = [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const [width, height] = sidesOf(inner).map((side) => Math.max(side, 0));
  const intersection = width * height;
  const union = areaOf(a) + areaOf(b) - intersection;
  return {inner, width, height, intersection, union, iou: intersection / union};
}

/** Put a rect where a box [x1, y1, x2, y2] is, and return it. */
function placed(rect, corners) {
  const [width, height] = sidesOf(corners).map((side) => Math.max(side, 0));
  for (const [key, value] of Object.entries({x: corners[0], y: corners[1], width, height})) rect.setAttribute(key, value);
  return rect;
}

/** A drawing over the photo data.photo, in the pixels of the net's input data.size. */
const onPhoto = (label, ...children) =>
  svg(
    "svg",
    {viewBox: `0 0 ${data.size.join(" ")}`, role: "group", "aria-label": label, class: "on-photo"},
    svg("image", {href: data.photo, width: data.size[0], height: data.size[1], preserveAspectRatio: "none"}),
    ...children,
  );

/** The colours of the page around: the site's or JupyterLab's button; else the system's. */
function followTheme() {
  const around = window.frameElement?.ownerDocument;
  if (!around) return;
  const {mdColorScheme, jpThemeLight} = around.body.dataset;
  const dark = mdColorScheme ? mdColorScheme === "slate" : jpThemeLight && jpThemeLight === "false";
  if (mdColorScheme || jpThemeLight) document.documentElement.dataset.theme = dark ? "dark" : "light";
}

/** The frame is as high as the figure. */
function fitFrame() {
  if (window.frameElement) window.frameElement.style.height = `${Math.ceil(document.body.getBoundingClientRect().height) + 2}px`;
}

try {
  followTheme();
  const around = window.frameElement?.ownerDocument;
  if (around) new MutationObserver(followTheme).observe(around.body, {attributes: true});
  new ResizeObserver(fitFrame).observe(document.body);
} catch {
  // a frame of another origin: the system's colours, and the height that the notebook gave
}

/** A labelled slider over numbers, as {row, set}; onchange gets the number. digits: of its text, or a function for it. */
function numberSlider(label, low, high, step, value, onchange, digits = 2) {
  const text = typeof digits === "function" ? digits : (now) => written(now, digits);
  const shown = el("output", {class: "number"}, text(value));
  const range = el("input", {type: "range", min: low, max: high, step, value, "aria-label": label});
  const set = (now) => {
    range.value = now;
    shown.textContent = text(Number(now));
  };
  range.addEventListener("input", () => {
    set(range.value);
    onchange(Number(range.value));
  });
  return {row: el("label", {class: "slider"}, el("span", {}, label), range, shown), set};
}

/** The place of a pointer in the coordinates of an svg element. */
function placeIn(drawing, event) {
  const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
  return [x, y];
}

/**
 * A box [x1, y1, x2, y2] in an svg element, moved by its inside and sized by its lower right corner, within [width, height].
 * Keys: arrows move it by one, with Shift its corner. onchange gets the corners. Returns {group, set}.
 */
function dragBox(drawing, label, name, corners, [width, height], onchange, least = 4) {
  let now = [...corners];
  const box = svg("rect", {class: `box ${name}`, tabindex: 0, role: "img"});
  const handle = svg("circle", {class: `handle ${name}`, r: 7});
  const draw = () => {
    const [x1, y1, x2, y2] = now;
    for (const [key, value] of Object.entries({x: x1, y: y1, width: x2 - x1, height: y2 - y1})) box.setAttribute(key, value);
    handle.setAttribute("cx", x2);
    handle.setAttribute("cy", y2);
    box.setAttribute("aria-label", `${label}: ${now.map((v) => written(v, 0)).join(", ")}; arrow keys move it, with Shift its corner`);
  };
  const set = (wanted, isCorner) => {
    const [x1, y1, x2, y2] = wanted;
    if (isCorner) now = [x1, y1, clamp(x2, x1 + least, width), clamp(y2, y1 + least, height)];
    else {
      const [dx, dy] = [clamp(x1, 0, width - (x2 - x1)) - x1, clamp(y1, 0, height - (y2 - y1)) - y1];
      now = [x1 + dx, y1 + dy, x2 + dx, y2 + dy];
    }
    draw();
    onchange(now);
  };
  const drag = (isCorner) => (down) => {
    down.preventDefault();
    box.focus({preventScroll: true});
    const [start, from] = [placeIn(drawing, down), [...now]];
    down.target.setPointerCapture(down.pointerId);
    const move = (event) => {
      const by = placeIn(drawing, event).map((v, i) => Math.round(v - start[i]));
      set(from.map((v, i) => (isCorner && i < 2 ? v : v + by[i % 2])), isCorner);
    };
    down.target.addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"])
      down.target.addEventListener(end, () => down.target.removeEventListener("pointermove", move), {once: true});
  };
  box.addEventListener("pointerdown", drag(false));
  handle.addEventListener("pointerdown", drag(true));
  box.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (by) set(now.map((v, i) => (event.shiftKey && i < 2 ? v : v + by[i % 2])), event.shiftKey);
  });
  draw();
  return {group: svg("g", {}, box, handle), set};
}

/** A drawing with a roi to drag, and its controls: beside it, or below on a narrow page. */
const withControls = (drawing, ...controls) =>
  el(
    "div",
    {class: "head"},
    drawing,
    el(
      "div",
      {class: "controls"},
      el("p", {class: "quiet"}, "Drag the roi, or its lower right corner. Keys: arrows, with Shift the corner."),
      controls,
    ),
  );
