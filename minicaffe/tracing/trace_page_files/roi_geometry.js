// The cells or samples of a bin, from the arrays of the trace: the page does not compute bounds or places.

/** All arrays of a layer's roi part. */
async function roiArrays(roi) {
  const names = ["rois", "map", "output", "dy", "dx", "start", "rounded", "size", "h", "w", "per_bin"];
  const all = async (refs, keys) => {
    const arrays = await Promise.all(keys.map((key) => read(refs[key])));
    return Object.fromEntries(keys.map((key, i) => [key, arrays[i]]));
  };
  return {...(await all(roi, names)), bins: roi.bins ? await all(roi.bins, Object.keys(roi.bins)) : null};
}

const isPositionSensitive = (roi) => roi.kind.startsWith("psroi");
const readsBins = (roi) => roi.kind.endsWith("bins");
const takesMaximum = (roi) => roi.kind.startsWith("max");

/** The map's channel that output channel c of bin (ph, pw) reads. cycle: of a map with too few, how many there are. */
const mapChannel = (roi, c, ph, pw) =>
  isPositionSensitive(roi) ? ((c * roi.group + ph) * roi.group + pw) % (roi.cycle ?? Infinity) : c;

/** The row of a (R, ...) array. */
const row = (array, r) => array.subarray(r * (array.length / array.shape[0]), (r + 1) * (array.length / array.shape[0]));

/** [start, end) of a bin's rows and columns, clipped and unclipped. */
function binBounds(arrays, r, ph, pw) {
  const {hstart, hend, wstart, wend, raw_hstart, raw_hend, raw_wstart, raw_wend} = arrays.bins;
  const at = (array, p) => array[r * array.shape[1] + p];
  return {
    h: [at(hstart, ph), at(hend, ph)],
    w: [at(wstart, pw), at(wend, pw)],
    rawH: [at(raw_hstart, ph), at(raw_hend, ph)],
    rawW: [at(raw_wstart, pw), at(raw_wend, pw)],
  };
}

/** The places along one axis that bin p of roi r samples. */
function places(array, r, p) {
  const k = array.shape[2];
  const first = (r * array.shape[1] + p) * k;
  return [...array.subarray(first, first + k)].filter((place) => !Number.isNaN(place));
}

/** The two neighbours of a place along an axis, with weights. In Caffe's ROIAlign they are floor and ceil, and a cell outside
 * the map adds 0; the others move a place outside the map to its edge. */
function neighbours(roi, place, size) {
  if (roi.kind === "max_samples") {
    const low = Math.floor(place);
    const high = Math.ceil(place);
    return [
      [low, 1 - place + low],
      [high < size ? high : -1, 1 - high + place],
    ];
  }
  const inside = clamp(place, 0, size - 1);
  const low = Math.floor(inside);
  return [
    [low, 1 - (inside - low)],
    [Math.min(low + 1, size - 1), inside - low],
  ];
}

/** Bin (ph, pw) of roi r in output channel c: its cells or samples with their values, the maximum, the result. */
function readBin(roi, arrays, r, c, ph, pw) {
  const [, height, width] = arrays.map.shape;
  const channel = mapChannel(roi, c, ph, pw);
  const stored = channel < arrays.map.shape[0] && arrays.rois[5 * r] === roi.item;
  const plane = stored ? arrays.map.subarray(channel * height * width, (channel + 1) * height * width) : null;
  const value = (h, w) => (h < 0 || w < 0 ? 0 : plane ? plane[h * width + w] : NaN);
  const bin = {channel, stored, plane, items: [], bounds: null, best: -1};
  if (readsBins(roi)) {
    bin.bounds = binBounds(arrays, r, ph, pw);
    for (let h = bin.bounds.h[0]; h < bin.bounds.h[1]; h++) {
      for (let w = bin.bounds.w[0]; w < bin.bounds.w[1]; w++)
        bin.items.push({h, w, value: value(h, w), cells: [{h, w, weight: 1}]});
    }
  } else {
    for (const h of places(arrays.h, r, ph)) {
      for (const w of places(arrays.w, r, pw)) {
        const cells = neighbours(roi, h, height).flatMap(([row, a]) =>
          neighbours(roi, w, width).map(([column, b]) => ({h: row, w: column, weight: a * b, value: value(row, column)})),
        );
        bin.items.push({h, w, cells, value: cells.reduce((sum, cell) => sum + cell.weight * cell.value, 0)});
      }
    }
  }
  if (takesMaximum(roi)) {
    bin.items.forEach((item, i) => {
      // `>`: NaN never wins, and the first of equal ones stays
      if (item.value > (bin.best < 0 ? -Infinity : bin.items[bin.best].value)) bin.best = i;
    });
  }
  bin.divisor = readsBins(roi) ? Math.max(bin.items.length, 1) : (arrays.per_bin?.[r] ?? 1);
  bin.value = takesMaximum(roi) ? maximum(bin) : bin.items.reduce((total, item) => total + item.value, 0) / bin.divisor;
  return bin;
}

/** 0 for an empty bin; the lowest float if all values are NaN or -infinity. */
function maximum(bin) {
  if (!bin.items.length) return 0;
  return bin.best < 0 ? -3.4028234663852886e38 : bin.items[bin.best].value; // -FLT_MAX, where Caffe's maximum starts
}

/** The factors of a bin's gradient by cell: [{h, w, factor}]; a cell that is read twice occurs once. */
function gradientFactors(roi, bin) {
  const sums = new Map();
  const giving = takesMaximum(roi) ? (bin.best < 0 ? [] : [bin.items[bin.best]]) : bin.items;
  for (const item of giving) {
    for (const {h, w, weight} of item.cells) {
      // A weight of 0 (a place on a pixel) gives no gradient.
      if (h < 0 || w < 0 || !weight) continue;
      const key = `${h},${w}`;
      // The maximum gets all of dy; a mean's samples get equal parts.
      const factor = weight / (takesMaximum(roi) ? 1 : bin.divisor);
      sums.set(key, {h, w, factor: (sums.get(key)?.factor ?? 0) + factor});
    }
  }
  return [...sums.values()];
}

/** The bins of all rois that depend on cell (h, w) of output channel c's maps: [{r, ph, pw, factor, dy}], the largest first.
 * Each position-sensitive bin reads a different map: only bin `only` = [ph, pw] reads the one shown. */
function contributions(roi, arrays, c, h, w, only) {
  const [count, channels, height, width] = arrays.dy.shape;
  const found = [];
  for (let r = 0; r < count; r++) {
    if (arrays.rois[5 * r] !== roi.item) continue;
    for (let ph = 0; ph < height; ph++) {
      // Rows and columns are tested separately, so that few bins are read in full.
      if ((only && ph !== only[0]) || !touches(roi, arrays, r, "h", ph, h)) continue;
      for (let pw = 0; pw < width; pw++) {
        if ((only && pw !== only[1]) || !touches(roi, arrays, r, "w", pw, w)) continue;
        const hit = gradientFactors(roi, readBin(roi, arrays, r, c, ph, pw)).find((cell) => cell.h === h && cell.w === w);
        if (hit) found.push({r, ph, pw, factor: hit.factor, dy: arrays.dy[((r * channels + c) * height + ph) * width + pw]});
      }
    }
  }
  return found.sort((a, b) => Math.abs(b.dy * b.factor) - Math.abs(a.dy * a.factor));
}

/** Whether bin p of roi r may read a row ("h") or column ("w"). */
function touches(roi, arrays, r, axis, p, cell) {
  if (readsBins(roi)) {
    const start = arrays.bins[`${axis}start`];
    const end = arrays.bins[`${axis}end`];
    const at = r * start.shape[1] + p;
    return start[at] <= cell && cell < end[at];
  }
  const size = arrays.map.shape[axis === "h" ? 1 : 2];
  return places(arrays[axis], r, p).some((place) => neighbours(roi, place, size).some(([k]) => k === cell));
}

/** The boxes of a roi on the map, in cells: `plain` as it lies on the image, the same for all layers; `used` as the layer
 * divides it; and the bins' edges. Cell k covers k to k + 1, and so does pixel k of the image: plain goes to the end of the roi's
 * last pixel. A sample at k reads the middle of cell k, so what is divided for samples is drawn half a cell further. */
function drawnBoxes(roi, arrays, r) {
  const [, x1, y1, x2, y2] = row(arrays.rois, r);
  const s = roi.spatial_scale;
  const [binH, binW] = row(arrays.size, r);
  const [ph, pw] = roi.pooled;
  const shift = readsBins(roi) ? 0 : 0.5;
  const from = row(readsBins(roi) ? arrays.rounded : arrays.start, r);
  const used = [from[0], from[1], from[0] + pw * binW, from[1] + ph * binH];
  return {
    plain: [x1 * s, y1 * s, (x2 + 1) * s, (y2 + 1) * s],
    used: used.map((v) => v + shift),
    rows: Array.from({length: ph + 1}, (_, p) => from[1] + p * binH + shift),
    columns: Array.from({length: pw + 1}, (_, p) => from[0] + p * binW + shift),
  };
}
