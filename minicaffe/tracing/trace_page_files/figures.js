// Drawings of the page as figures for print: SVG, or PNG, with a caption of the net, the layer and the step.

const PRINT = 2008; // pixels: 17 cm, a page's text, at 300 dpi
const DENSITY = [0, 0, 0, 9, 112, 72, 89, 115, 0, 0, 46, 35, 0, 0, 46, 35, 1, 120, 165, 63, 118]; // PNG's pHYs chunk: 300 dpi
const MARGINS = 6; // around a figure, in pixels of the page
const HEADER = 33; // bytes of a PNG before its other chunks

/** Buttons that save what root() has drawn: the maps, or the stages, with their captions. */
const saveButtons = (root, what) =>
  el(
    "span",
    {class: "row save-figure", role: "group", "aria-label": `Save ${what} as a figure`},
    button("SVG", `Save ${what} as SVG`, () => saveSvg(figureOf(root(), what))),
    button("PNG", `Save ${what} as PNG, 300 dpi`, () => savePng(figureOf(root(), what))),
  );

function saveSvg(figure) {
  save(new Blob([svgText(figure)], {type: "image/svg+xml"}), figure, "svg");
}

async function savePng(figure) {
  const [, , width, height] = figure.getAttribute("viewBox").split(" ").map(Number);
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([svgText(figure)], {type: "image/svg+xml"}));
  await image.decode();
  const canvas = el("canvas", {width: PRINT, height: Math.round((PRINT * height) / width)});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  const png = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  save(new Blob([png.slice(0, HEADER), new Uint8Array(DENSITY), png.slice(HEADER)], {type: png.type}), figure, "png");
}

/** Download a figure's file, named like its caption. */
function save(blob, figure, kind) {
  const name = figure.querySelector("title").textContent.match(/[\p{L}\p{N}]+/gu).join("-");
  const link = el("a", {download: `${name}.${kind}`, href: URL.createObjectURL(blob)});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const svgText = (figure) => new XMLSerializer().serializeToString(figure);

/** The net, the layer with its type, the step, and what is shown. */
function captionOf(what) {
  const {net} = trace;
  const layer = trace.layers[state.layer];
  const step = state.step === null ? [] : [KINDS[trace.steps[state.step].kind]];
  const place = state.view === "result" ? [] : [`layer ${layer.name} (${layer.type})`, ...step];
  const way = state.view === "result" && state.detection !== null ? [`detection ${state.detection} and where it comes from`] : [];
  return [net.name || net.file, ...place, what, ...way].join(", ");
}

/** An SVG element of the stages, tiles, colour bars and captions in `root` (one or more elements), placed as on the page. */
function figureOf(root, what) {
  const all = (selector) => [root].flat().flatMap((each) => [...each.querySelectorAll(selector)]);
  const stages = all(".stage").map(stagePart);
  const bars = all(".scale-bar").map(barPart);
  const tiles = all("canvas[data-map]").map((canvas) => ({
    rect: canvas.getBoundingClientRect(),
    drawn: (x, y) => imageOf(canvas, x, y),
  }));
  const texts = all("figcaption").flatMap(linesOf);
  const parts = [...stages, ...bars, ...tiles, ...texts].filter(({rect}) => rect.width && rect.height);
  const left = Math.min(...parts.map(({rect}) => rect.left));
  const top = Math.min(...parts.map(({rect}) => rect.top));
  const width = Math.max(...parts.map(({rect}) => rect.right)) - left;
  const height = Math.max(...parts.map(({rect}) => rect.bottom)) - top;
  const size = clamp(width / 45, 6, 12);
  const caption = wrapped(captionOf(what), Math.floor(width / (0.56 * size))).map((line, i) =>
    textOf(line, 0, height + size * (1.8 + 1.4 * i), {"font-size": size}),
  );
  const view = [-MARGINS, -MARGINS, width + 2 * MARGINS, height + size * (1.4 * caption.length + 0.4) + 2 * MARGINS];
  return svg(
    "svg",
    {xmlns: "http://www.w3.org/2000/svg", viewBox: view.join(" "), width: "170mm", height: `${(170 * view[3]) / view[2]}mm`},
    svg("title", {}, captionOf(what)),
    svg("rect", {x: view[0], y: view[1], width: view[2], height: view[3], fill: "#fff"}),
    parts.map(({rect, drawn}) => drawn(rect.left - left, rect.top - top)),
    caption,
  );
}

/** A stage: its background, its picture, and its overlay with the styles of the page. */
function stagePart(stage) {
  const overlay = stage.querySelector("svg");
  const rect = overlay.getBoundingClientRect();
  const {width, height} = rect;
  const grain = overlay.viewBox.baseVal.width / width; // strokes have their width in pixels on the page, in units here
  const drawn = (x, y) =>
    svg(
      "svg",
      {x, y, width, height},
      svg("rect", {width, height, fill: getComputedStyle(stage).backgroundColor}),
      [...stage.querySelectorAll("canvas")].map((canvas) => {
        const at = canvas.getBoundingClientRect();
        return imageOf(canvas, at.left - rect.left, at.top - rect.top);
      }),
      svg("svg", {width, height, viewBox: overlay.getAttribute("viewBox")}, styledChildren(overlay, grain)),
    );
  return {rect, drawn};
}

/** A bar of colours; its numbers are dark, as the paper is white. */
function barPart(bar) {
  const drawn = (x, y) => {
    const copies = styledChildren(bar, 1);
    for (const copy of copies) if (copy.localName === "text") copy.setAttribute("fill", INK);
    return svg("svg", {x, y, width: BAR.width, height: bar.clientHeight, overflow: "visible"}, copies);
  };
  return {rect: bar.getBoundingClientRect(), drawn};
}

const INK = "#1d1f21";
const GEOMETRY = ["x", "y", "width", "height", "x1", "y1", "x2", "y2", "cx", "cy", "r", "d"];
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-opacity", "opacity"];
const TEXT_STYLES = ["font-family", "font-size", "font-weight", "text-anchor"];

/** A copy of an element with the page's styles as attributes; null for what is not seen. */
function styled(element, grain) {
  const style = getComputedStyle(element);
  if (style.visibility === "hidden" || style.display === "none") return null;
  const copy = element.cloneNode(false);
  for (const name of copy.getAttributeNames()) if (!GEOMETRY.includes(name)) copy.removeAttribute(name);
  const names = element.localName === "text" ? [...STYLES, ...TEXT_STYLES] : STYLES;
  for (const name of names) copy.setAttribute(name, style.getPropertyValue(name));
  if (style.stroke !== "none") {
    const scaled = (text) => text.replace(/[\d.]+(px)?/g, (length) => parseFloat(length) * grain);
    copy.setAttribute("stroke-width", scaled(style.strokeWidth));
    if (style.strokeDasharray !== "none") copy.setAttribute("stroke-dasharray", scaled(style.strokeDasharray));
  }
  copy.append(...styledChildren(element, grain));
  return copy;
}

function styledChildren(element, grain) {
  const copies = [...element.childNodes].map((child) => (child instanceof Text ? child.cloneNode() : styled(child, grain)));
  return copies.filter(Boolean);
}

function imageOf(canvas, x, y) {
  const {width, height} = canvas.getBoundingClientRect();
  const href = canvas.toDataURL();
  return svg("image", {href, x, y, width, height, preserveAspectRatio: "none", style: "image-rendering: pixelated"});
}

/** The lines of a caption, as they are broken on the page. */
function linesOf(caption) {
  const lines = [];
  const walker = document.createTreeWalker(caption, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const {data, parentElement} = walker.currentNode;
    const {fontSize, fontWeight} = getComputedStyle(parentElement);
    for (const {0: word, index} of data.matchAll(/\S+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, index);
      range.setEnd(walker.currentNode, index + word.length);
      const rect = range.getBoundingClientRect();
      const line = lines.at(-1);
      if (line?.node === walker.currentNode && Math.abs(line.rect.bottom - rect.bottom) < 2) {
        line.words.push(word);
        line.rect = new DOMRect(line.rect.x, line.rect.y, rect.right - line.rect.x, line.rect.height);
      } else {
        const font = {"font-size": parseFloat(fontSize), "font-weight": fontWeight};
        lines.push({node: walker.currentNode, rect, words: [word], font});
      }
    }
  }
  return lines.map(({rect, words, font}) => ({
    rect,
    drawn: (x, y) => textOf(words.join(" "), x, y + 0.8 * rect.height, font),
  }));
}

const textOf = (text, x, y, font) => svg("text", {x, y, fill: INK, "font-family": "sans-serif", ...font}, text);

/** Lines of at most `room` characters. */
function wrapped(text, room) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= room) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines;
}

/** For the browser's console: the SVG of the first figure shown, or of what is in an element of this selector. */
globalThis.minicaffe = {
  figure(selector = ".inspector .views, .result .view, .tiles") {
    const root = document.querySelector(selector);
    return root && svgText(figureOf(root, selector));
  },
};
