// MNC's ROIWarping: one bilinear sample at the start of each bin. See layers/roi/roi_warping.py.
#include "roi.cuh"

struct Axis {
  REAL first, length, count;  // the roi's start, a bin's size, 1
};

__device__ inline Axis axis_of(const Shape& s, const Roi& roi, bool columns, int, int) {
  const REAL first = round_half_away((columns ? roi.x1 : roi.y1) * REAL(s.scale));
  const REAL size = round_half_away((columns ? roi.x2 : roi.y2) * REAL(s.scale)) - first;
  return {first, (size > 0 ? size : REAL(0)) / REAL(columns ? s.pooled_w : s.pooled_h), 1};
}

__device__ inline Span fill(const Axis& axis, int bin, int size, REAL, REAL* weight) {
  const REAL place = REAL(bin) * axis.length + axis.first;
  if (!(place >= REAL(-0.5) && place <= REAL(size) - REAL(0.5)) || !size) return {0, 0};
  return add_sample(place, size, weight, {0, 0});
}

#include "roi_means.cuh"
