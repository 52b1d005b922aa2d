// Cascade R-CNN's ROIAlign: a bilinear sample at each corner of the bins. See layers/roi/roi_align.py.
#include "roi.cuh"

struct Axis {
  REAL first, length, count;  // the roi's start, a bin's size, 1
};

// A bin of the Shape is a corner. There is one more corner than bins.
__device__ inline Axis axis_of(const Shape& s, const Roi& roi, bool columns, int, int) {
  const REAL first = (columns ? roi.x1 : roi.y1) * REAL(s.scale) - REAL(0.5);
  const REAL last = (columns ? roi.x2 : roi.y2) * REAL(s.scale) - REAL(0.5);
  return {first, (last - first) / REAL((columns ? s.pooled_w : s.pooled_h) - 1), last - first > 0 ? REAL(1) : REAL(0)};
}

__device__ inline Span fill(const Axis& axis, int bin, int size, REAL, REAL* weight) {
  const REAL place = REAL(bin) * axis.length + axis.first;
  if (!axis.count || !(place >= REAL(-0.5) && place <= REAL(size) - REAL(0.5)) || !size) return {0, 0};
  return add_sample(place, size, weight, {0, 0});
}

#include "roi_means.cuh"
