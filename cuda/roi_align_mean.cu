// Mask R-CNN's ROIAlign: means of a grid of bilinear samples. See layers/roi/roi_align_mean.py.
#include "roi.cuh"

struct Axis {
  REAL first, length, count;  // the roi's start, a bin's size, the number of samples in a bin
};

__device__ inline Axis axis_of(const Shape& s, const Roi& roi, bool columns, int ratio, int aligned) {
  const REAL half = aligned ? REAL(0.5) : REAL(0);
  const REAL first = (columns ? roi.x1 : roi.y1) * REAL(s.scale) - half;
  const REAL last = (columns ? roi.x2 : roi.y2) * REAL(s.scale) - half;
  REAL size = last - first;
  if (!aligned && size < 1) size = 1;
  const REAL length = size / REAL(columns ? s.pooled_w : s.pooled_h);
  const REAL rounded = ceil(length);
  return {first, length, ratio > 0 ? REAL(ratio) : rounded > 0 ? rounded : REAL(0)};
}

__device__ inline Span fill(const Axis& axis, int bin, int size, REAL divisor, REAL* weight) {
  const REAL start = axis.first + REAL(bin) * axis.length, count = axis.count > 1 ? axis.count : REAL(1);
  double low = 0, high = axis.count;
  if (axis.length > 0) {  // for a huge roi, only samples that can be on the map
    const double step = (double)axis.length / (double)count;
    low = min(max(floor((-1.0 - start) / step) - 2, 0.0), (double)axis.count);  // 2 more, because places are rounded
    high = min(max(ceil((size - (double)start) / step) + 2, 0.0), (double)axis.count);
  }
  Span read = {0, 0};
  for (double i = low; i < high; i += 1) {
    const REAL place = start + (REAL(i) + REAL(0.5)) * axis.length / count;
    if (!(place >= -1 && place <= size) || !size) continue;
    read = add_sample(place, size, weight, read);
  }
  for (int i = read.first; i < read.end; ++i)
    if (weight[i] > 0) weight[i] /= divisor;  // here, to divide once and not in each product
  return read;
}

#include "roi_means.cuh"
