// Receptive fields: the pixels of the net's input that cells depend on. receptive_fields.py explains them.

/** The places on a bottom's axis of that length that these places of the top read. */
function placesRead([stride = 1, divisor = 1, first = 0, last = 0, step = 1, modulo = 0], places, length) {
  const found = new Set();
  for (const i of places) {
    const end = Math.floor((stride * i + last) / divisor);
    for (let k = Math.ceil((stride * i + first) / divisor); k <= end; k += step) {
      if (modulo) found.add(((k % modulo) + modulo) % modulo);
      else if (k >= 0 && k < length) found.add(k);
    }
  }
  return found;
}

const allOf = (length) => new Set(Array(length).keys());

/** The cells {rows, columns, statistics} of a bottom of this shape that cells of a top read. A blob without maps: one cell. */
function bottomCells(reads, cells, shape, name) {
  const [height, width] = shape?.length === 4 ? shape.slice(2) : [1, 1];
  if (!cells.rows.size || !cells.columns.size) return {rows: new Set(), columns: new Set(), statistics: new Set()};
  if (!reads) return {rows: allOf(height), columns: allOf(width), statistics: cells.statistics};
  return {
    rows: placesRead(reads.rows, cells.rows, height),
    columns: placesRead(reads.columns, cells.columns, width),
    statistics: reads.statistics ? new Set([...cells.statistics, name]) : cells.statistics,
  };
}

/** The field of cells (arrays of rows and columns) of a blob as layer i leaves it, in the net's first input of maps:
 * {blob, rows: [first, last], columns, statistics (names of layers)}; null where they depend on none. */
function receptiveField(i, blob, rows, columns) {
  const found = new Map([[blob, {rows: new Set(rows), columns: new Set(columns), statistics: new Set()}]]);
  let field = null;
  for (let k = i; k >= 0; k--) {
    const layer = trace.layers[k];
    const asked = layer.tops.map((name) => found.get(name));
    for (const name of layer.tops) found.delete(name);
    asked.forEach((cells, t) => {
      if (!cells) return;
      if (!layer.bottoms.length && shapesOf[k].top[layer.tops[t]]?.length === 4) field = {blob: layer.tops[t], ...cells};
      layer.bottoms.forEach((name, b) => {
        const own = bottomCells(layer.reads[t]?.[b], cells, shapesOf[k].bottom[name], layer.name);
        const had = found.get(name);
        const joined = (what) => new Set([...(had?.[what] ?? []), ...own[what]]);
        found.set(name, {rows: joined("rows"), columns: joined("columns"), statistics: joined("statistics")});
      });
    });
  }
  if (!field?.rows.size || !field.columns.size) return null;
  const ends = (places) => [Math.min(...places), Math.max(...places)];
  return {blob: field.blob, rows: ends(field.rows), columns: ends(field.columns), statistics: [...field.statistics].reverse()};
}

function fieldText({blob, rows: [top, bottom], columns: [left, right], statistics}) {
  const more = statistics.length > 1 ? ` and ${statistics.length - 1} more layers` : "";
  const all = statistics.length ? `; all, through the statistics of ${statistics[0]}${more}` : "";
  const size = `${bottom - top + 1} × ${right - left + 1} pixels`;
  return `rows ${top} to ${bottom}, columns ${left} to ${right} of ${blob}: ${size}${all}`;
}
