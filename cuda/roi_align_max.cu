// Caffe's ROIAlign: maxima of bilinear samples at unit steps. See layers/roi/roi_align_max.py.
#include "roi.cuh"

struct Edges {
  REAL start, end;
};

struct alignas(16) Bin {
  REAL h, w;                 // its first sample
  int image, rows, columns;  // samples along each axis; 0 and 0: empty
};

#include "roi_winners.cuh"

// Where a bin starts and ends along one axis, clipped to [0, size]. Its samples: start, start + 1, ... below end.
__device__ inline Edges edges_of(const Shape& s, const Roi& roi, bool columns, int bin) {
  const REAL first = (columns ? roi.x1 : roi.y1) * REAL(s.scale), last = (columns ? roi.x2 : roi.y2) * REAL(s.scale);
  const REAL size = REAL(columns ? s.width : s.height);
  const REAL length = (last - first + REAL(1)) / REAL(columns ? s.pooled_w : s.pooled_h);
  return {clip(REAL(bin) * length + first, size), clip(REAL(bin + 1) * length + first, size)};
}

// How many samples; added and rounded one by one, as in pooled.
__device__ inline int samples(const Edges& edges) {
  int count = 0;
  for (REAL place = edges.start; place < edges.end; place += 1) ++count;
  return count;
}

__device__ inline Bin bin_at(const Shape& s, const Roi& roi, int ph, int pw) {
  const Edges rows = edges_of(s, roi, false, ph), columns = edges_of(s, roi, true, pw);
  if (!(rows.start < rows.end && columns.start < columns.end)) return {};
  return {rows.start, columns.start, roi.image, samples(rows), samples(columns)};
}

// The greatest samples, and in at the first such, i * (W + 1) + j; 0 and -1 for an empty bin.
__device__ inline Pack pooled(const Shape& s, const Bin& bin, const Map& map, int* at) {
  const int height = s.height, width = s.width;
  Pack best = start_of(!bin.rows);
  REAL h = bin.h;
  for (int i = 0; i < bin.rows; ++i, h += 1) {
    const REAL low_h = floor(h), high_h = ceil(h), upper = 1 - h + low_h, lower = 1 - high_h + h;
    const int top = (int)low_h * width, bottom = (int)high_h * width;
    const bool inside = high_h < height;
    REAL w = bin.w;
    for (int j = 0; j < bin.columns; ++j, w += 1) {
      const REAL low_w = floor(w), high_w = ceil(w), left = 1 - w + low_w, right = 1 - high_w + w;
      const int a = (int)low_w, b = (int)high_w;
      const bool within = high_w < width;
      Pack value = {};  // a neighbour past the map adds 0
      value.add(left * lower, inside ? map[bottom + a] : Pack{});
      value.add(right * lower, inside && within ? map[bottom + b] : Pack{});
      value.add(left * upper, map[top + a]);
      value.add(right * upper, within ? map[top + b] : Pack{});
      take_greater(value, i * (width + 1) + j, best, at);
    }
  }
  return best;
}

// The pixels that the samples of a bin read along one axis.
__device__ inline Span cells_of(const Shape& s, const Roi& roi, bool columns, int bin) {
  const Edges edges = edges_of(s, roi, columns, bin);
  if (!(edges.start < edges.end)) return {0, 0};
  REAL last = edges.start;
  while (last + 1 < edges.end) last += 1;  // the forward's places: added and rounded one by one
  return {(int)edges.start, min((int)ceil(last) + 1, columns ? s.width : s.height)};
}

__device__ inline void put_back(const Shape& s, const REAL* rois, int r, int ph, int pw, int at, REAL dy, REAL* sums, int row,
                                int rows) {
  const Roi roi = read_roi(s, rois, r, nullptr);
  REAL h = edges_of(s, roi, false, ph).start, w = edges_of(s, roi, true, pw).start;
  for (int i = at / (s.width + 1); i > 0; --i) h += 1;  // not h + i, which rounds otherwise
  for (int j = at % (s.width + 1); j > 0; --j) w += 1;
  const REAL low_h = floor(h), low_w = floor(w), high_h = ceil(h), high_w = ceil(w);
  const REAL weight_h[2] = {1 - h + low_h, 1 - high_h + h}, weight_w[2] = {1 - w + low_w, 1 - high_w + w};
  const int line[2] = {(int)low_h - row, (int)high_h - row}, column[2] = {(int)low_w, (int)high_w};
#pragma unroll
  for (int a = 0; a < 2; ++a)
#pragma unroll
    for (int b = 0; b < 2; ++b)
      if (line[a] >= 0 && line[a] < rows && column[b] < s.width)
        sums[line[a] * s.width + column[b]] += weight_h[a] * weight_w[b] * dy;
}
