// The position-sensitive layers: only bin (gh, gw) reads channel c = (d * G + gh) * G + gw, and c is also its index in y.
// The including file defines before:
//   struct Extent                                       where a bin starts and ends along one axis
// and after:
//   REAL corner(REAL)                                   a roi's coordinate, before it is scaled
//   Extent extent(REAL start, REAL end, int size)       of a bin on an axis of the map
//   REAL mean(const Shape&, const Bin&, const REAL* plane)
//   REAL row_part(const Shape&, const Bin&, int h)      what row h contributes to each of the bin's columns; -1: nothing
//   void put_back(const Shape&, const Bin&, Span across, REAL row, REAL dy, REAL* sums, int stride)
//     add dy's parts in the columns `across` to their sums, which are stride apart; row: row_part
// Tables are ordered by bin, then by roi: adjacent threads process adjacent rois and read adjacent numbers.
#pragma once
#include "roi.cuh"
#include "roi_hits.cuh"

struct Bin {
  Extent rows, columns;
  REAL row_step, column_step;  // from sample to sample
  int samples;                 // along an axis; 0: the layer has no samples
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
__device__ inline REAL row_part(const Shape& s, const Bin& bin, int h);
__device__ inline void put_back(const Shape& s, const Bin& bin, Span across, REAL row, REAL dy, REAL* sums, int stride);

// The tables: table (2, G, R) of Extents; steps (2, R) or nullptr; images (R,), -1 for a bad roi.
extern "C" __global__ void bins(Shape s, int samples, const REAL* rois, void* table, REAL* steps, int* images, int* bad) {
  const int group = s.pooled_h;
  LOOP(i, 2u * group * s.rois) {
    const int r = (int)(i % s.rois), g = (int)(i / s.rois) % group, columns = i / s.rois >= (unsigned)group;
    const Roi roi = read_roi(s, rois, r, bad);
    const REAL first = corner(columns ? roi.x1 : roi.y1) * REAL(s.scale);
    const REAL end = (corner(columns ? roi.x2 : roi.y2) + 1) * REAL(s.scale);
    const REAL size = end - first, length = (size > REAL(0.1) ? size : REAL(0.1)) / REAL(group);  // the original's minimum size
    Extent made = {0, 0};
    if (roi.image >= 0) made = extent(REAL(g) * length + first, REAL(g + 1) * length + first, columns ? s.width : s.height);
    ((Extent*)table)[i] = made;
    if (g) continue;
    if (!columns) images[r] = roi.image;
    if (steps) steps[(long long)columns * s.rois + r] = roi.image < 0 ? REAL(1) : length / REAL(samples + 1);
  }
}

// y (R, C) from x (N, C, H, W). A block processes `planes` channels of an image, in shared memory if staged, and all rois.
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
  // adjacent threads process adjacent planes of one roi, adjacent in y
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

constexpr int ROOM = 22 * 1024 / (int)sizeof(REAL);  // for a block's sums
constexpr int AHEAD = 4;                             // rois whose numbers are read together
constexpr int SHARES = 2;                            // warps that divide the rois of a bin

// dx (N, C, H, W), completely, from dy (R, G, G, D). A block has `columns` pixels of a row of the map, in some channels of each
// of `bins` adjacent bins. Each bin has SHARES warps with sums of their own, and each channel a thread. So a warp's threads
// process the same pixels of the same rois in adjacent channels d, and no two threads share a pixel's sum. At the end the sums
// are added, in order. So each sum has one order, whatever the timing. Sums are REAL, as in the originals.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 3)
backward(Shape s, int samples, const void* table, const REAL* steps, const int* images, int bins, int columns, const REAL* dy, REAL* dx) {
  __shared__ REAL sums[ROOM];
  __shared__ Hits hits;
  const Tables t = {s.rois, s.pooled_h, samples, (const Extent*)table, steps};
  const int group = t.group, dim = s.channels / (group * group), parts = (dim + WARP - 1) / WARP;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, share = warp / bins;
  int rest = blockIdx.x;
  const auto index = [&rest](int count) {
    const int i = rest % count;
    rest /= count;
    return i;
  };
  const int h = index(s.height), first = index((s.width + columns - 1) / columns) * columns;
  const int gw = index((group + bins - 1) / bins) * bins + warp % bins, gh = index(group);
  const int part = index(parts), image = rest, d0 = dim * part / parts, depth = dim * (part + 1) / parts - d0;
  const Span across = {first, min(first + columns, s.width)};
  const int stride = ((dim + parts - 1) / parts) | 1;  // odd, so that a channel's pixels lie in different banks
  const REAL* from = dy + (gh * group + gw) * dim + d0 + lane;
  REAL* plane = sums + (warp * columns - first) * stride;  // of the warp, indexed by the map's columns
  const bool ours = gw < group && lane < depth;
  if (ours)
    for (int w = across.first; w < across.end; ++w) plane[w * stride + lane] = 0;
  for (int start = 0; start < s.rois; start += SECTION) {
    const int some = min(SECTION, s.rois - start);
    __syncthreads();  // until all have read the last section's list
    BLOCK_LOOP(k, some) hits.number[k] = images[start + k] == image ? row_part(s, t.bin_at(start + k, gh, 0), h) : REAL(-1);
    const int count = list_hits(hits, some);
    for (int i = share * AHEAD; ours && i < count; i += SHARES * AHEAD) {
      Bin bin[AHEAD];
      REAL row[AHEAD], value[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const int place = hits.list[min(i + k, count - 1)], r = start + place;  // valid past the end too, which saves a branch
        row[k] = hits.number[place];
        bin[k] = t.bin_at(r, gh, gw);
        value[k] = from[(unsigned)r * s.channels];
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k)
        if (i + k < count) put_back(s, bin[k], across, row[k], value[k], plane + lane, stride);
    }
  }
  __syncthreads();
  if (gw < group && !share)
    for (int d = 0; d < depth; ++d) {
      const unsigned line = ((((unsigned)image * dim + d0 + d) * group + gh) * group + gw) * s.height + h;
      for (int w = across.first + lane; w < across.end; w += WARP) {
        REAL sum = plane[w * stride + d];
        for (int other = 1; other < SHARES; ++other) sum += plane[(other * bins * columns + w) * stride + d];
        dx[line * s.width + w] = sum;
      }
    }
}
