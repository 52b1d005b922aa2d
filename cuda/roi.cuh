// What the ROI layers' kernels share: rois that are checked on the device, and the originals' rounding. The geometry is
// layers/roi/roi_geometry.py's, operation by operation in REAL: compiled without fused multiply-add it gives the same bits.
#pragma once
#include "common.cuh"

// A roi's corners in image pixels; image: which of the batch, -1 for a bad roi.
struct Roi {
  int image;
  REAL x1, y1, x2, y2;
};

// A feature map (images, channels, height, width) and the grid of bins over each roi.
struct Shape {
  int rois, images, channels, height, width, pooled_h, pooled_w;
  double scale;
};

// Pixels [first, end) of one axis.
struct Span {
  int first, end;
};

// Row r of rois (R, 5). The conditions are those of rois_problem. A bad roi puts R - r, the most of all bad ones, into *bad
// (where bad is not nullptr): the first bad row, by any order of the threads.
__device__ inline Roi read_roi(const Shape& s, const REAL* rois, int r, int* bad) {
  const REAL* p = rois + 5LL * r;
  const double batch = p[0], wide = s.scale < -1 ? -s.scale : s.scale > 1 ? s.scale : 1;
  bool good = batch >= 0 && batch < s.images && batch == trunc(batch);
  for (int i = 1; i < 5; ++i) good = good && fabs((double)p[i]) * wide <= 536870912.0;  // 2^29; false for NaN
  if (!good && bad) atomicMax(bad, s.rois - r);
  return {good ? (int)batch : -1, p[1], p[2], p[3], p[4]};
}

// C's round(): halves away from zero.
__device__ inline REAL round_half_away(REAL v) {
  const REAL whole = trunc(v);
  return fabs(v - whole) >= REAL(0.5) ? whole + (v < 0 ? REAL(-1) : REAL(1)) : whole;
}

__device__ inline int clip(int v, int most) { return v < 0 ? 0 : v > most ? most : v; }
__device__ inline REAL clip(REAL v, REAL most) { return v < 0 ? REAL(0) : v > most ? most : v; }
