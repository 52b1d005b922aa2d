// PSROIAlign: averages of bilinear samples in position-sensitive bins. See layers/roi/psroi_align.py.
#include "roi.cuh"

// Clipped to [0, size - 1]. A bin's samples: start + 1, 2, ... steps, below end.
struct alignas(2 * sizeof(REAL)) Extent {
  REAL start, end;
};

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

// The weight of the row in the mean of the samples.
__device__ inline REAL row_part(const Shape& s, const Bin& bin, int h) {
  REAL weight = -1;
  for (int i = 1; i <= bin.samples; ++i) {
    const REAL place = bin.rows.start + REAL(i) * bin.row_step;
    if (!(place < bin.rows.end)) break;
    const int low = (int)place, high = min(low + 1, s.height - 1);
    const REAL share = place - REAL(low);
    // at the last pixel, low equals high, and the share is 0
    if (h == low) weight = (weight < 0 ? REAL(0) : weight) + (1 - share);
    if (h == high) weight = (weight < 0 ? REAL(0) : weight) + share;
  }
  return weight / REAL((long long)bin.samples * bin.samples);
}

__device__ inline void put_back(const Shape& s, const Bin& bin, Span across, REAL row, REAL dy, REAL* sums, int stride) {
  const REAL each = row * dy;
  for (int j = 1; j <= bin.samples; ++j) {
    const REAL place = bin.columns.start + REAL(j) * bin.column_step;
    if (!(place < bin.columns.end)) break;
    const int left = (int)place, right = min(left + 1, s.width - 1);
    const REAL share = place - REAL(left);
    if (left >= across.first && left < across.end) sums[left * stride] += (1 - share) * each;
    if (right >= across.first && right < across.end) sums[right * stride] += share * each;
  }
}
