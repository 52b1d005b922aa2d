// Pictures of numbers: grey maps on canvases, pages of tiles, histograms.

const BAD = [220, 38, 38, 255]; // NaN and infinity

/** A canvas of `values` (height * width from `offset`), black at low, white at high, red if not finite. */
function greyCanvas(values, offset, height, width, low, high) {
  const scale = high > low ? 255 / (high - low) : 0;
  return paintedCanvas(height, width, (i) => {
    const v = values[offset + i];
    if (!Number.isFinite(v)) return BAD;
    const grey = scale ? (v - low) * scale : 128;
    return [grey, grey, grey, 255];
  });
}

/** A canvas whose pixel i has the red, green, blue and alpha of colour(i). */
function paintedCanvas(height, width, colour) {
  const canvas = el("canvas", {width, height, class: "pixels"});
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) pixels.data.set(colour(i), 4 * i);
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/** The least and greatest finite value of values[offset .. offset + count); of equal size if `symmetric`. */
function rangeOf(values, offset, count, symmetric = false) {
  let low = Infinity;
  let high = -Infinity;
  for (let i = offset; i < offset + count; i++) {
    if (!Number.isFinite(values[i])) continue;
    low = Math.min(low, values[i]);
    high = Math.max(high, values[i]);
  }
  if (low > high) return [0, 0];
  const size = Math.max(-low, high);
  return symmetric ? [-size, size] : [low, high];
}

/** The maps of a blob, or the filters of a convolution, as pages of tiles. */
function tilesView(tiles, what) {
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
    back.disabled = first === 0;
    on.disabled = last === stored;
  };
  const move = (by) => {
    first = clamp(first + by, 0, stored - 1);
    draw();
  };
  const back = button("‹", `previous ${what}s`, () => move(-perPage), {disabled: true});
  const on = button("›", `next ${what}s`, () => move(perPage), {disabled: stored <= perPage});
  const about = tiles.shrunk > 1 ? quiet(`shrunk ${number(tiles.shrunk)} times`) : null;
  grid.style.minHeight = `${Math.ceil(size.height + 18)}px`; // its height before it is drawn, so that the page does not jump
  return whenSeen(
    el("div", {class: "tiles-view"}, el("div", {class: "row"}, stored > perPage ? [back, on] : [], where, about), grid),
    draw,
  );
}

/** The displayed size of a tile: small maps grow by whole factors, large ones shrink to 160 pixels. */
function tileSize(height, width) {
  const longest = Math.max(height, width);
  const scale = longest >= 96 ? Math.min(1, 160 / longest) : Math.max(1, Math.floor((longest <= 12 ? 36 : 96) / longest));
  return {height: height * scale, width: width * scale};
}

function tile(tiles, pixels, i, what) {
  const count = tiles.height * tiles.width;
  const canvas = paintedCanvas(tiles.height, tiles.width, (p) => {
    const grey = pixels[i * count + p];
    return grey === 255 ? BAD : [grey, grey, grey, 255];
  });
  const name = tiles.per > 1 ? `output ${Math.floor(i / tiles.per)}, input ${i % tiles.per}` : `${what} ${i}`;
  const text = `${name}: black ${number(tiles.low[i])}, white ${number(tiles.high[i])}`;
  filled(canvas, {role: "img", "aria-label": text}, []);
  return el("figure", {class: "tile", title: text}, canvas, el("figcaption", {class: "quiet"}, i));
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
