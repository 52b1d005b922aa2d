// Pictures of numbers: maps on canvases, pages of tiles, histograms.

const BAD = [255, 0, 255, 255]; // NaN and infinity

/** Colours at -1, -0.5, 0, 0.5 and 1 times the greatest size: 0 is black, whatever the map. trace.py has the same. */
const STOPS = [
  [214, 238, 255],
  [38, 110, 214],
  [0, 0, 0],
  [214, 86, 20],
  [255, 236, 196],
];

/** The colour of a value on a scale from low to high, one of which may be 0. */
function colourOf(value, low, high) {
  if (!Number.isFinite(value)) return BAD;
  const place = 2 * clamp(value / (Math.max(-low, high) || 1), -1, 1) + 2;
  const i = Math.min(Math.floor(place), STOPS.length - 2);
  return [...STOPS[i].map((from, k) => from + (STOPS[i + 1][k] - from) * (place - i)), 255];
}

const scaleText = (low, high) => `${number(low, 3)} to ${number(high, 3)}, 0 is black`;

const BAR = {width: 132, height: 9, steps: 44};

/** The scale from low to high as a bar of colours, with the values at its ends and 0. */
function scaleBar(low, high) {
  const {width, height, steps} = BAR;
  const step = width / steps;
  const at = (value) => ((value - low) / (high - low || 1)) * width;
  const parts = Array.from({length: steps}, (_, i) => {
    const [r, g, b] = colourOf(low + ((high - low) * i) / (steps - 1), low, high);
    return svg("rect", {x: i * step, y: 0, width: step + 0.5, height, fill: `rgb(${r},${g},${b})`}); // no gap between two
  });
  const ends = low === high ? [low] : low < 0 && high > 0 ? [low, 0, high] : [low, high];
  const marks = ends.map((value) => {
    const x = at(value);
    const anchor = x === 0 ? "start" : x === width ? "end" : "middle";
    return svg("text", {x, y: height + 12, "text-anchor": anchor}, number(value, 3));
  });
  const size = {width, height: height + 15};
  return svg("svg", {...size, class: "scale-bar", role: "img", "aria-label": `Colours: ${scaleText(low, high)}`}, parts, marks);
}

/** A canvas of `values` (height * width from `offset`). */
const mapCanvas = (values, offset, height, width, low, high) =>
  paintedCanvas(height, width, (i) => colourOf(values[offset + i], low, high));

/** A canvas whose pixel i has the red, green, blue and alpha of colour(i). */
function paintedCanvas(height, width, colour) {
  const canvas = el("canvas", {width, height, class: "pixels"});
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) pixels.data.set(colour(i), 4 * i);
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/** The scale of values[offset .. offset + count): 0 to the greatest or, with both signs, from minus the greatest size to it. */
function rangeOf(values, offset, count) {
  let [low, high] = [0, 0];
  for (let i = offset; i < offset + count; i++) {
    if (!Number.isFinite(values[i])) continue;
    low = Math.min(low, values[i]);
    high = Math.max(high, values[i]);
  }
  const size = Math.max(-low, high);
  return low < 0 && high > 0 ? [-size, size] : [low, high];
}

/** The maps of a blob, or the filters of a convolution, as pages of tiles. of: the blob, in words. */
function tilesView(tiles, what, of) {
  const {page: stored, height, width} = tiles;
  const size = tileSize(height, width);
  const perPage = Math.min(stored, size.width < 40 ? 48 : 24);
  const grid = el("div", {class: "row tiles", style: `--tile: ${size.width}px; --tile-height: ${size.height}px`});
  const where = el("span", {class: "quiet", "aria-live": "polite"});
  let first = 0;
  const draw = async () => {
    const pixels = await read(tiles.pixels);
    const last = Math.min(first + perPage, stored);
    grid.replaceChildren(...Array.from({length: last - first}, (_, i) => tile(tiles, pixels, first + i, what)));
    where.textContent =
      `${what}s ${first} to ${last - 1} of ${tiles.channels}` +
      (stored < tiles.channels ? ` (the first ${stored} are in this page)` : "");
    pagerEnds(back, on, first === 0, last === stored);
  };
  const move = (by) => {
    first = clamp(first + by, 0, stored - 1);
    draw();
  };
  const back = button("‹", `previous ${what}s`, () => move(-perPage), {disabled: true});
  const on = button("›", `next ${what}s`, () => move(perPage), {disabled: stored <= perPage});
  const shrunk = tiles.shrunk > 1 ? quiet(`shrunk ${tiles.shrunk} times`) : null;
  const bar = tiles.form === "labels" ? legendOf(LABEL_KEYS) : el("span", {}, scaleBar(tiles.low, tiles.high));
  grid.style.minHeight = `${Math.ceil(size.height + 18)}px`; // its height before it is drawn, so that the page does not jump
  const save = saveButtons(() => [bar, grid], `the ${what}s of ${of}`);
  const head = el("div", {class: "row"}, stored > perPage ? [back, on] : [], where, bar, shrunk, save);
  return whenSeen(el("div", {class: "tiles-view"}, head, grid), draw);
}

/** The displayed size of a tile: small maps grow by whole factors, large ones shrink to 160 pixels. */
function tileSize(height, width) {
  const longest = Math.max(height, width);
  const scale = longest >= 96 ? Math.min(1, 160 / longest) : Math.max(1, Math.floor((longest <= 12 ? 36 : 96) / longest));
  return {height: height * scale, width: width * scale};
}

function mapName(tiles, i, what) {
  if (tiles.form === "boxes") return `anchor ${i >> 2}, ${MOVES[i % 4]}`;
  return tiles.per > 1 ? `output ${Math.floor(i / tiles.per)}, input ${i % tiles.per}` : `${what} ${i}`;
}

/** The colours of the labels −1, 0 and 1, as the legend has them. */
const LABEL_COLOURS = [
  [124, 130, 136, 255],
  [226, 59, 59, 255],
  [26, 163, 82, 255],
];
const LABEL_KEYS = [
  ["target-positive", "1: an object"],
  ["target-negative", "0: background"],
  ["target-ignored", "−1: ignored"],
];

/** A canvas of map i of these tiles. */
function tileCanvas({height, width, low, high, form}, pixels, i) {
  const count = height * width;
  if (form === "labels") return paintedCanvas(height, width, (p) => LABEL_COLOURS[pixels[i * count + p] / 127]);
  return paintedCanvas(height, width, (p) => {
    const pixel = pixels[i * count + p];
    return colourOf(pixel === 255 ? NaN : low + (pixel * (high - low)) / 254, low, high);
  });
}

function tile(tiles, pixels, i, what) {
  const {low, high} = tiles;
  const canvas = tileCanvas(tiles, pixels, i);
  const isLabels = tiles.form === "labels";
  const text = `${mapName(tiles, i, what)}: ${isLabels ? "labels 1, 0 and −1" : scaleText(low, high)}`;
  filled(canvas, {role: "img", "aria-label": text, "data-map": i}, []);
  return el("figure", {class: "tile", title: text}, canvas, el("figcaption", {class: "quiet"}, tiles.form === "boxes" ? `${i >> 2} ${MOVES[i % 4]}` : i));
}

/** Bars of a histogram {low, high, counts}. */
function histogramView({low, high, counts, every}) {
  const most = Math.max(...counts, 1);
  const edge = (i) => number(low + ((high - low) * i) / counts.length, 4);
  const bars = counts.map((count, i) => {
    const height = (100 * count) / most;
    const title = svg("title", {}, `${edge(i)} to ${edge(i + 1)}: ${count * every}`);
    return svg("rect", {x: i + 0.08, width: 0.84, y: 100 - height, height}, title);
  });
  const zero = (counts.length * -low) / (high - low); // the place of 0, in bars
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${counts.length} 100`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Histogram from ${number(low)} to ${number(high)}`,
    },
    bars,
    low < 0 && high > 0 ? svg("line", {x1: zero, x2: zero, y1: 0, y2: 100, class: "zero"}) : null,
  );
  const ends = [low, high].map((v) => el("span", {}, number(v, 4)));
  return el("figure", {class: "histogram"}, picture, el("figcaption", {class: "quiet"}, ends));
}
