// The position-sensitive layers: channel c = (d * G + gh) * G + gw is read by bin (gh, gw) alone, and c is its place in y.
// The file that includes this one defines before:
//   struct Bin                                                       a bin as the table's kernel left it
//   Bin bin_at(const Tables&, int r, int gh, int gw)
//   REAL mean(const Shape&, const Bin&, const REAL* plane)
//   Span pixels(const Shape&, const Bin&, bool columns)              what it may read along an axis
//   void spread(const Shape&, const Bin&, int h, int w, REAL dy, REAL& sum)   add the pixel's share of dy to sum
// Tables lie bin by bin, roi by roi: adjacent threads, which take adjacent rois, read adjacent numbers.
#pragma once
#include "roi.cuh"

struct Tables {
  Shape s;            // pooled_h = pooled_w = G
  const int* images;  // (R,): -1 for a bad roi
  const void* bins;   // what the including file makes of them, (2, G, R)
  const REAL* steps;  // (2, R), and
  int samples;        // along an axis of a bin, if the layer has them
};

__device__ inline Bin bin_at(const Tables& t, int r, int gh, int gw);
__device__ inline REAL mean(const Shape& s, const Bin& bin, const REAL* plane);
__device__ inline Span pixels(const Shape& s, const Bin& bin, bool columns);
__device__ inline void spread(const Shape& s, const Bin& bin, int h, int w, REAL dy, REAL& sum);

constexpr int CELLS = 44 * 1024 / (int)sizeof(REAL);
constexpr int HIGH = 4, WIDE = 8;  // a group of threads in backward
constexpr int AHEAD = 4;           // rois whose numbers are read together

// y (R, C) from x (N, C, H, W). A block takes `planes` channels of an image, in shared memory if staged, and all rois.
__device__ inline void means(const Tables& t, int planes, int staged, const REAL* x, REAL* y) {
  __shared__ REAL stage[CELLS];
  const Shape& s = t.s;
  const int parts = (s.channels + planes - 1) / planes, image = blockIdx.x / parts;
  const int first = (int)(blockIdx.x % parts) * planes, count = min(planes, s.channels - first), pixels = s.height * s.width;
  const REAL* maps = x + ((unsigned)image * s.channels + first) * pixels;
  if (staged) {
    for (int i = threadIdx.x; i < count * pixels; i += blockDim.x) stage[i] = maps[i];
    __syncthreads();
    maps = stage;
  }
  const int p = threadIdx.x % planes, bin = (first + p) % (s.pooled_h * s.pooled_w);
  if (p >= count) return;
  for (int r = threadIdx.x / planes; r < s.rois; r += blockDim.x / planes) {
    const int mine = t.images[r];
    if (mine == image)
      y[(unsigned)r * s.channels + first + p] = mean(s, bin_at(t, r, bin / s.pooled_w, bin % s.pooled_w), maps + p * pixels);
    else if (mine < 0)
      y[(unsigned)r * s.channels + first + p] = 0;
  }
}

// dx (N, C, H, W), all of it, from dy (R, C). As roi_align_mean.cu's backward: copies of a plane (or of tile_rows of its rows) in
// shared memory, each for a group of HIGH x WIDE threads that take every groups-th roi, in order, and pixels of their own.
__device__ inline void gather_bins(const Tables& t, int tile_rows, const REAL* dy, REAL* dx) {
  __shared__ REAL sums[CELLS];
  const Shape& s = t.s;
  const int tiles = (s.height + tile_rows - 1) / tile_rows, plane = blockIdx.x / tiles;
  const int image = plane / s.channels, channel = plane % s.channels, at = channel % (s.pooled_h * s.pooled_w);
  const int gh = at / s.pooled_w, gw = at % s.pooled_w;
  const int row = (int)(blockIdx.x % tiles) * tile_rows, rows = min(tile_rows, s.height - row), cells = rows * s.width;
  const int groups = blockDim.x / (HIGH * WIDE), group = threadIdx.x / (HIGH * WIDE);
  const int i = threadIdx.x / WIDE % HIGH, j = threadIdx.x % WIDE;
  REAL* mine = sums + group * cells - row * s.width;
  for (int k = threadIdx.x; k < groups * cells; k += blockDim.x) sums[k] = 0;
  __syncthreads();
  for (int r0 = group; r0 < s.rois; r0 += groups * AHEAD) {
    bool ours[AHEAD];
    Bin bins[AHEAD];
    REAL value[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int r = min(r0 + k * groups, s.rois - 1);
      ours[k] = r0 + k * groups < s.rois && t.images[r] == image;
      bins[k] = bin_at(t, r, gh, gw);
      value[k] = dy[(unsigned)r * s.channels + channel];
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (!ours[k]) continue;
      const Span down = pixels(s, bins[k], false), across = pixels(s, bins[k], true);
      const int top = max(down.first, row), bottom = min(down.end, row + rows);
      for (int h = top + ((i - top) & (HIGH - 1)); h < bottom; h += HIGH)
        for (int w = across.first + ((j - across.first) & (WIDE - 1)); w < across.end; w += WIDE)
          spread(s, bins[k], h, w, value[k], mine[h * s.width + w]);
    }
  }
  __syncthreads();
  for (int k = threadIdx.x; k < cells; k += blockDim.x) {
    REAL sum = 0;
    for (int g = 0; g < groups; ++g) sum += sums[g * cells + k];
    dx[(unsigned)plane * s.height * s.width + row * s.width + k] = sum;
  }
}
