// For the ROI layers' kernels: rois checked on the device, and the originals' rounding. The geometry repeats
// layers/roi/roi_geometry.py, operation by operation, in REAL. Without fused multiply-add it gives the same bits.
#pragma once
#include "common.cuh"

// A roi's corners in image pixels. image: its index in the batch, -1 for a bad roi.
struct Roi {
  int image;
  REAL x1, y1, x2, y2;
};

// A feature map (images, channels, height, width), and the grid of bins in each roi.
struct Shape {
  int rois, images, channels, height, width, pooled_h, pooled_w;
  double scale;
};

// Pixels [first, end) of one axis.
struct alignas(8) Span {
  int first, end;
};

// Forward reads the map in slabs: (N, slabs, H, W, SLAB). Zeros fill the last slab.
constexpr int SLAB = 64 / (int)sizeof(REAL);  // channels

__device__ inline int slabs_of(int channels) { return (channels + SLAB - 1) / SLAB; }

// Row r of rois (R, 5). The conditions are those of rois_problem. *bad (unless nullptr) becomes R - r for the first bad row r,
// in any order of the threads: it is the maximum.
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

constexpr int WARP = 32;                              // threads that run together
constexpr int CELLS = 47 * 1024 / (int)sizeof(REAL);  // REALs of the map in a block's shared memory

__device__ inline int clip(int v, int most) { return v < 0 ? 0 : v > most ? most : v; }
__device__ inline REAL clip(REAL v, REAL most) { return v < 0 ? REAL(0) : v > most ? most : v; }

// Adds a bilinear sample at `place` to the weights along an axis, which are -1 where nothing is read. read: the pixels read so
// far.
// Returns them with the sample's pixels.
__device__ inline Span add_sample(REAL place, int size, REAL* weight, Span read) {
  const REAL inside = clip(place, REAL(size - 1));
  const int pixel = (int)inside, next = min(pixel + 1, size - 1);
  const REAL share = inside - REAL(pixel);
  weight[pixel] = (weight[pixel] < 0 ? REAL(0) : weight[pixel]) + (1 - share);
  weight[next] = (weight[next] < 0 ? REAL(0) : weight[next]) + share;
  return {read.end ? min(read.first, pixel) : pixel, max(read.end, next + 1)};
}
