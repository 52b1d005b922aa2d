// The position-sensitive layers: channel c = (d * G + gh) * G + gw is read by bin (gh, gw) alone, and c is its place in y.
// The file that includes this one defines before:
//   struct Extent                                       where a bin starts and ends along one axis
//   constexpr int RESIDENT                              blocks of backward at a time on a multiprocessor, without spilled registers
// and after:
//   REAL corner(REAL)                                   a roi's coordinate, before it is scaled
//   Extent extent(REAL start, REAL end, int size)       of a bin on an axis of the map
//   REAL mean(const Shape&, const Bin&, const REAL* plane)
//   Span pixels(const Shape&, const Bin&, bool columns)  what it may read along an axis
//   void put_back(const Shape&, const Bin&, int h, int w, REAL dy, REAL& sum)   add the pixel's part of dy to sum
// Tables are ordered by bin, then by roi: adjacent threads, which take adjacent rois, read adjacent numbers.
#pragma once
#include "roi.cuh"

struct Bin {
  Extent rows, columns;
  REAL row_step, column_step;  // from sample to sample
  int samples;                 // along an axis; 0: the layer has none
};

struct Tables {
  int rois, group, samples;
  const Extent* bins;  // (2, G, R), rows first
  const REAL* steps;   // (2, R), or nullptr
  __device__ Bin bin_at(int r, int gh, int gw) const {
    return {bins[(long long)gh * rois + r], bins[(long long)(group + gw) * rois + r], steps ? steps[r] : REAL(0),
            steps ? steps[(long long)rois + r] : REAL(0), samples};
  }
};

__device__ inline REAL corner(REAL v);
__device__ inline Extent extent(REAL start, REAL end, int size);
__device__ inline REAL mean(const Shape& s, const Bin& bin, const REAL* plane);
__device__ inline Span pixels(const Shape& s, const Bin& bin, bool columns);
__device__ inline void put_back(const Shape& s, const Bin& bin, int h, int w, REAL dy, REAL& sum);

constexpr int HIGH = 4, WIDE = 8;  // a group of threads in backward
constexpr int AHEAD = 4;           // rois whose numbers are read together

// The tables: table (2, G, R), an Extent each; steps (2, R) or nullptr; images (R,): -1 for a bad roi.
extern "C" __global__ void bins(Shape s, int samples, const REAL* rois, void* table, REAL* steps, int* images, int* bad) {
  const int group = s.pooled_h;
  LOOP(r, s.rois) {
    const Roi roi = read_roi(s, rois, r, bad);
    images[r] = roi.image;
    for (int columns = 0; columns < 2; ++columns) {
      const REAL first = corner(columns ? roi.x1 : roi.y1) * REAL(s.scale);
      const REAL end = (corner(columns ? roi.x2 : roi.y2) + 1) * REAL(s.scale);
      const REAL size = end - first, length = (size > REAL(0.1) ? size : REAL(0.1)) / REAL(group);  // the original's least size
      for (int g = 0; g < group; ++g) {
        Extent made = {0, 0};
        if (roi.image >= 0) made = extent(REAL(g) * length + first, REAL(g + 1) * length + first, columns ? s.width : s.height);
        ((Extent*)table)[((long long)columns * group + g) * s.rois + r] = made;
      }
      if (steps) steps[(long long)columns * s.rois + r] = roi.image < 0 ? REAL(1) : length / REAL(samples + 1);
    }
  }
}

// y (R, C) from x (N, C, H, W). A block takes `planes` channels of an image, in shared memory if staged, and all rois.
extern "C" __global__ void pool(Shape s, int samples, const void* table, const REAL* steps, const int* images, int planes,
                                int staged, const REAL* x, REAL* y) {
  __shared__ REAL stage[CELLS];
  const Tables t = {s.rois, s.pooled_h, samples, (const Extent*)table, steps};
  const int parts = (s.channels + planes - 1) / planes, image = blockIdx.x / parts;
  const int first = (int)(blockIdx.x % parts) * planes, count = min(planes, s.channels - first), pixels = s.height * s.width;
  const REAL* maps = x + ((unsigned)image * s.channels + first) * pixels;
  if (staged) {
    BLOCK_LOOP(i, count * pixels) stage[i] = maps[i];
    __syncthreads();
    maps = stage;
  }
  // adjacent threads: the planes of one roi, adjacent in y
  const int p = threadIdx.x % planes, bin = (first + p) % (s.pooled_h * s.pooled_w);
  if (p >= count) return;
  for (int r = threadIdx.x / planes; r < s.rois; r += blockDim.x / planes) {
    const int mine = images[r];
    if (mine == image)
      y[(unsigned)r * s.channels + first + p] = mean(s, t.bin_at(r, bin / s.pooled_w, bin % s.pooled_w), maps + p * pixels);
    else if (mine < 0)
      y[(unsigned)r * s.channels + first + p] = 0;
  }
}

// dx (N, C, H, W), all of it, from dy (R, C). See Slice of roi.cuh: groups have HIGH x WIDE threads, each with pixels that no other
// thread has.
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
backward(Shape s, int samples, const void* table, const REAL* steps, const int* images, int tile_rows, const REAL* dy, REAL* dx) {
  __shared__ REAL sums[CELLS];
  const Tables t = {s.rois, s.pooled_h, samples, (const Extent*)table, steps};
  const Slice of = slice_of(s, tile_rows, HIGH * WIDE);
  const int at = of.channel % (s.pooled_h * s.pooled_w), gh = at / s.pooled_w, gw = at % s.pooled_w;
  const int i = threadIdx.x / WIDE % HIGH, j = threadIdx.x % WIDE;
  REAL* mine = sums + of.group * of.cells - of.row * s.width;  // indexed by the map's own rows
  of.clear(sums);
  for (int r0 = of.group; r0 < s.rois; r0 += of.groups * AHEAD) {
    bool ours[AHEAD];
    Bin bins[AHEAD];
    REAL value[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int r = min(r0 + k * of.groups, s.rois - 1);  // valid past the end too: loads without a branch
      ours[k] = r0 + k * of.groups < s.rois && images[r] == of.image;
      bins[k] = t.bin_at(r, gh, gw);
      value[k] = dy[(unsigned)r * s.channels + of.channel];
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      if (!ours[k]) continue;
      const Span down = pixels(s, bins[k], false), across = pixels(s, bins[k], true);
      const int top = max(down.first, of.row), bottom = min(down.end, of.row + of.rows);
      for (int h = top + ((i - top) & (HIGH - 1)); h < bottom; h += HIGH)  // from top on, the rows with h % HIGH == i
        for (int w = across.first + ((j - across.first) & (WIDE - 1)); w < across.end; w += WIDE)
          put_back(s, bins[k], h, w, value[k], mine[h * s.width + w]);
    }
  }
  of.write(s, sums, false, dx);
}
