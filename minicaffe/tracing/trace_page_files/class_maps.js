// Class activation maps (Grad-CAM) on the image. class_maps.py draws the same picture.

const PHOTO = 0.4; // the share of the photo in the picture; the rest is the map
const LEAST_WIDTH = 320; // pixels of the picture: those of a smaller image are repeated, so that the map is smooth

/** The image in grey with a map stretched over it; without a map, the image. */
async function mappedPhoto(found) {
  const canvas = await photoCanvas();
  if (!found) return canvas;
  const times = Math.ceil(LEAST_WIDTH / trace.image.width);
  const [width, height] = [trace.image.width, trace.image.height].map((side) => side * times);
  const [rgb, values] = await Promise.all([photo(), read(found.map)]);
  const at = stretched(values, ...found.map.shape, height, width);
  return paintedCanvas(height, width, (i) => {
    const [y, x] = [Math.floor(i / width), i % width].map((place) => Math.floor(place / times));
    const p = 3 * (y * trace.image.width + x);
    const grey = 0.299 * rgb[p] + 0.587 * rgb[p + 1] + 0.114 * rgb[p + 2];
    const [r, g, b] = colourOf(at(i), 0, found.high);
    return [...[r, g, b].map((v) => PHOTO * grey + (1 - PHOTO) * v), 255];
  });
}

/** A function from a pixel of a picture to the value of a map (rows, columns) there, between its cells' centres. */
function stretched(values, rows, columns, height, width) {
  const along = (count, cells) =>
    Array.from({length: count}, (_, i) => {
      const place = clamp(((i + 0.5) * cells) / count - 0.5, 0, cells - 1);
      const first = Math.min(Math.floor(place), Math.max(cells - 2, 0));
      return [first, Math.min(first + 1, cells - 1), place - first];
    });
  const [down, across] = [along(height, rows), along(width, columns)];
  return (i) => {
    const [y, y2, v] = down[Math.floor(i / width)];
    const [x, x2, u] = across[i % width];
    const row = (r) => values[r * columns + x] * (1 - u) + values[r * columns + x2] * u;
    return row(y) * (1 - v) + row(y2) * v;
  };
}

/** Paint the image on a stage, with a map or (null) without. */
function paintMapped(view, found) {
  if (view.shownMap === found) return;
  const {width, height} = trace.image;
  view.shownMap = found;
  view.scale(found && found.high ? [0, found.high] : null);
  view.say(found ? `Grad-CAM of ${found.words} at ${found.layer}${found.high ? "" : ": no cell is above 0"}` : "");
  mappedPhoto(found).then((canvas) => {
    if (view.shownMap === found) view.paint(canvas, 0, 0, width, height);
  });
}

/** The map of a detection, if the page has it. */
const mapOfDetection = (one) =>
  trace.class_maps.find(
    ({class_index: k, box}) => box && k === one.class_index && box.every((v, i) => Math.abs(v - one.box[i]) < 0.5),
  ) ?? null;

/** The map of a class, if the page has it. */
const mapOfClass = (k) => trace.class_maps.find(({class_index: other, box}) => !box && other === k) ?? null;
