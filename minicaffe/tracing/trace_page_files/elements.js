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
