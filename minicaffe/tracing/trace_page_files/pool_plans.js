// The cells or samples that a roi outside the trace reads in each kind of ROI layer, in the form of roiArrays. In float32,
// with the order of operations of the layers' `plan` in minicaffe.layers.

/** The kinds of ROI layers, in the order in which they are shown. */
const POOLS = [
  {name: "ROIPooling", kind: "max_bins"},
  {name: "ROIAlign, Caffe's (MAX)", kind: "max_samples"},
  {name: "ROIAlign, Mask R-CNN's (AVE)", kind: "mean_samples"},
  {name: "PSROIPooling", kind: "psroi_bins"},
  {name: "PSROIAlign", kind: "psroi_samples", samples: 2},
];

const roundHalfAway = (v) => (Math.abs(v - Math.trunc(v)) >= 0.5 ? Math.trunc(v) + Math.sign(v) : Math.trunc(v));

/** A length cut into bins along one axis: {length, edges}. */
function cutAxis(first, extent, count) {
  const length = f32(extent / count);
  return {length, edges: Array.from({length: count + 1}, (_, k) => f32(f32(k * length) + first))};
}

const sampleCount = (length, ratio) => (ratio > 0 ? ratio : Math.max(Math.ceil(length), 0));

/** For each kind, of one axis from `a` to `b` in pixels of the image: {start, rounded, length} and either bins [first, end)
 * before clipping or the places of each bin's samples. */
const AXIS_PLANS = {
  max_bins(a, b, {scale, count}) {
    const [start, last] = [f32(a * scale), f32(b * scale)];
    const [first, end] = [roundHalfAway(start), roundHalfAway(last)];
    const {length, edges} = cutAxis(0, Math.max(end - first + 1, 1), count);
    const bins = edges.slice(1).map((edge, p) => [Math.floor(edges[p]) + first, Math.ceil(edge) + first]);
    return {start: [start, last], rounded: [first, end], length, bins};
  },
  psroi_bins(a, b, {scale, count}) {
    const [first, end] = [f32(roundHalfAway(a) * scale), f32((roundHalfAway(b) + 1) * scale)];
    const {length, edges} = cutAxis(first, Math.max(f32(end - first), f32(0.1)), count);
    const bins = edges.slice(1).map((edge, p) => [Math.floor(edges[p]), Math.ceil(edge)]);
    return {start: [f32(a * scale), f32(b * scale)], rounded: [first, end], length, bins};
  },
  max_samples(a, b, {scale, count, size}) {
    const [first, last] = [f32(a * scale), f32(b * scale)];
    const {length, edges} = cutAxis(first, f32(f32(last - first) + 1), count);
    const samples = edges.slice(1).map((edge, p) => {
      const found = [];
      for (let at = clamp(edges[p], 0, size); at < clamp(edge, 0, size); at = f32(at + 1)) found.push(at);
      return found;
    });
    return {start: [first, last], length, samples, each: 1};
  },
  mean_samples(a, b, {scale, count, size, aligned, ratio}) {
    const [first, last] = [f32(a * scale), f32(b * scale)].map((v) => f32(v - (aligned ? 0.5 : 0)));
    const extent = f32(last - first);
    const {length, edges} = cutAxis(first, aligned ? extent : Math.max(extent, 1), count);
    const each = sampleCount(length, ratio);
    const samples = edges.slice(0, -1).map((edge) =>
      Array.from({length: each}, (_, i) => f32(edge + f32(f32(f32(i + 0.5) * length) / Math.max(each, 1)))).filter(
        (at) => at >= -1 && at <= size,
      ),
    );
    return {start: [first, last], length, samples, each};
  },
  psroi_samples(a, b, {scale, count, size, samples: each}) {
    const [first, end] = [f32(a * scale), f32(f32(b + 1) * scale)];
    const {length, edges} = cutAxis(first, Math.max(f32(end - first), f32(0.1)), count);
    const step = f32(length / (each + 1)); // of the bin before clipping
    const samples = edges.slice(1).map((edge, p) => {
      const [from, to] = [edges[p], edge].map((v) => clamp(v, 0, Math.max(size - 1, 0)));
      return Array.from({length: each}, (_, i) => f32(from + f32((i + 1) * step))).filter((at) => at < to);
    });
    return {start: [first, end], length, samples, each};
  },
};

/** roiArrays of one roi [x1, y1, x2, y2] (float32) on a map. roi: {kind, spatial_scale, pooled, item}, the kind's settings. */
function plannedArrays(roi, corners, map) {
  const [, height, width] = map.shape;
  const [x1, y1, x2, y2] = corners;
  const plan = (a, b, count, size) => AXIS_PLANS[roi.kind](a, b, {...roi, scale: f32(roi.spatial_scale), count, size});
  const h = plan(y1, y2, roi.pooled[0], height);
  const w = plan(x1, x2, roi.pooled[1], width);
  const shaped = (numbers, ...shape) => Object.assign(Float32Array.from(numbers), {shape});
  const both = (key) => h[key] && shaped([w[key][0], h[key][0], w[key][1], h[key][1]], 1, 4);
  const arrays = {
    rois: shaped([roi.item, ...corners], 1, 5),
    map,
    start: both("start"),
    rounded: both("rounded"),
    size: shaped([h.length, w.length], 1, 2),
    per_bin: shaped([Math.max((h.each ?? 1) * (w.each ?? 1), 1)], 1),
  };
  if (h.bins) {
    const edges = (axis, k, size) => shaped(axis.bins.map((bin) => clamp(bin[k], 0, size)), 1, axis.bins.length);
    const bins = (name, axis, size) => ({
      [`${name}start`]: edges(axis, 0, size),
      [`${name}end`]: edges(axis, 1, size),
      [`raw_${name}start`]: shaped(axis.bins.map((bin) => bin[0]), 1, axis.bins.length),
      [`raw_${name}end`]: shaped(axis.bins.map((bin) => bin[1]), 1, axis.bins.length),
    });
    arrays.bins = {...bins("h", h, height), ...bins("w", w, width)};
  } else {
    const places = (axis) => {
      const most = Math.max(...axis.samples.map((found) => found.length), 1);
      const padded = axis.samples.flatMap((found) => [...found, ...Array(most - found.length).fill(NaN)]);
      return shaped(padded, 1, axis.samples.length, most);
    };
    Object.assign(arrays, {h: places(h), w: places(w)});
  }
  return arrays;
}
