// PSROIAlign: averages of bilinear samples in position-sensitive bins. See layers/psroi_align.py.
#include "roi.cuh"

// Clipped to [0, size - 1]. The samples of a bin: start + 1, 2, ... steps, below end.
struct Extent {
  REAL start, end;
};

constexpr int RESIDENT = sizeof(REAL) == 4 ? 3 : 2;

#include "psroi.cuh"

__device__ inline REAL corner(REAL v) { return v; }

__device__ inline Extent extent(REAL start, REAL end, int size) {
  const REAL last = REAL(max(size - 1, 0));
  return {clip(start, last), clip(end, last)};
}

__device__ inline REAL mean(const Shape& s, const Bin& bin, const REAL* plane) {
  const REAL divisor = REAL((long long)bin.samples * bin.samples);
  REAL sum = 0;
  if (!s.height || !s.width) return 0;
  for (int i = 1; i <= bin.samples; ++i) {
    const REAL h = bin.rows.start + REAL(i) * bin.row_step;
    if (!(h < bin.rows.end)) break;
    const int top = (int)h, bottom = min(top + 1, s.height - 1);
    const REAL lower = h - REAL(top), upper = 1 - lower;
    for (int j = 1; j <= bin.samples; ++j) {
      const REAL w = bin.columns.start + REAL(j) * bin.column_step;
      if (!(w < bin.columns.end)) break;
      const int left = (int)w, right = min(left + 1, s.width - 1);
      const REAL east = w - REAL(left), west = 1 - east;
      sum += upper * west * plane[top * s.width + left] + upper * east * plane[top * s.width + right] +
             lower * west * plane[bottom * s.width + left] + lower * east * plane[bottom * s.width + right];
    }
  }
  return sum / divisor;
}

// All samples lie in [start, end), and end is on the map: the pixels from start's to the one after end's.
__device__ inline Span pixels(const Shape& s, const Bin& bin, bool columns) {
  const Extent& edges = columns ? bin.columns : bin.rows;
  if (!(edges.start < edges.end)) return {0, 0};
  return {(int)edges.start, min((int)ceil(edges.end) + 1, columns ? s.width : s.height)};
}

// The weight of a pixel in the sum of the samples along an axis, -1 where no sample reads it.
__device__ inline REAL weight_of(const Extent& edges, REAL step, int samples, int size, int pixel) {
  REAL weight = -1;
  for (int i = 1; i <= samples; ++i) {
    const REAL place = edges.start + REAL(i) * step;
    if (!(place < edges.end)) break;
    const int low = (int)place, high = min(low + 1, size - 1);
    const REAL share = place - REAL(low);
    // low and high are one at the last pixel, where share is 0
    if (pixel == low) weight = (weight < 0 ? REAL(0) : weight) + (1 - share);
    if (pixel == high) weight = (weight < 0 ? REAL(0) : weight) + share;
  }
  return weight;
}

__device__ inline void put_back(const Shape& s, const Bin& bin, int h, int w, REAL dy, REAL& sum) {
  const REAL row = weight_of(bin.rows, bin.row_step, bin.samples, s.height, h);
  const REAL column = weight_of(bin.columns, bin.column_step, bin.samples, s.width, w);
  if (row >= 0 && column >= 0) sum += row * column / REAL((long long)bin.samples * bin.samples) * dy;
}
