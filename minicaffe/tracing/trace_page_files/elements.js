// Functions that make elements.

/** An HTML element with attributes (functions for on...) and children (elements, text, null). */
function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const quiet = (text) => el("span", {class: "quiet"}, text);

const button = (text, label, onclick, attributes = {}) =>
  el("button", {type: "button", "aria-label": label, title: label, onclick, ...attributes}, text);

/** A labelled slider with a number field beside it. onchange gets the number. */
function slider(label, low, high, value, onchange) {
  const range = el("input", {type: "range", min: low, max: high, value, "aria-label": `${label}, slider`, tabindex: 0});
  const field = el("input", {type: "number", min: low, max: high, value, "aria-label": label});
  const take = (event) => {
    const wanted = Math.round(Number(event.target.value));
    if (event.target.value !== "" && !Number.isNaN(wanted)) onchange(clamp(wanted, low, high));
  };
  range.addEventListener("input", take);
  field.addEventListener("change", take);
  const row = el("label", {class: "slider"}, el("span", {}, label), range, field, quiet(`of ${high + 1 - low}`));
  row.set = (now) => {
    range.value = now;
    field.value = now;
  };
  return row;
}

/** Enable the buttons of a pager; the focus leaves the one that is disabled for the other. */
function pagerEnds(back, on, isFirst, isLast) {
  const focused = document.activeElement;
  back.disabled = isFirst;
  on.disabled = isLast;
  if (focused === back && isFirst) on.focus();
  if (focused === on && isLast) back.focus();
}

/** What a reader knows an element by: in what is drawn next, the same. */
const knownAs = (element) => element.getAttribute("aria-label") ?? (element.closest("label") ?? element).textContent;

/** Redraw what is in root. What had the focus has it again, when it is drawn, which may be later; till then, root. */
function withFocus(root, redraw) {
  const focused = document.activeElement;
  const inside = focused !== root && root.contains(focused);
  const name = inside && knownAs(focused);
  redraw();
  if (!inside || focused.isConnected) return;
  root.focus({preventScroll: true});
  const again = () => {
    const found = [...root.querySelectorAll(focused.tagName)].find((other) => knownAs(other) === name && !other.disabled);
    found?.focus({preventScroll: true});
    return Boolean(found);
  };
  if (again()) return;
  const watching = new MutationObserver(() => {
    if (![root, document.body].includes(document.activeElement) || again()) watching.disconnect();
  });
  watching.observe(root, {childList: true, subtree: true});
}

/** A select of [value, text]. */
const choiceOf = (label, texts, value, onchange) =>
  el(
    "select",
    {"aria-label": label, title: label, onchange: (event) => onchange(event.target.value)},
    texts.map(([each, text]) => el("option", {value: each, selected: String(each) === String(value)}, text)),
  );

const ARROWS = {ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0]};

/** The direction [x, y] of an arrow key, which is then used up; null for another key, or with Ctrl, Meta or Alt. */
function arrowOf(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !ARROWS[event.key]) return null;
  event.preventDefault();
  return ARROWS[event.key];
}

/** A roi of a stage by keys: the arrows move it by a pixel, with Shift its end. */
function keysMove(frame, corners, set) {
  frame.addEventListener("keydown", (event) => {
    const by = arrowOf(event);
    if (by) set(corners().map((v, i) => (event.shiftKey && i < 2 ? v : v + by[i % 2])));
  });
}

/** A legend: texts by the class of their key; a text without a key has a null class. */
const legendOf = (entries) =>
  el(
    "p",
    {class: "quiet row legend"},
    entries.map(([key, text]) => el("span", {}, key && el("i", {class: `key ${key}`}), text)),
  );

/** Call draw once, when the element first comes near the visible area. */
function whenSeen(element, draw) {
  new IntersectionObserver(
    (entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      draw();
    },
    {rootMargin: "200px"},
  ).observe(element);
  return element;
}
