// Forward of the layers that pool every channel over the same bins. The file that includes this one defines before:
//   struct Bin                                            a bin, the same for all channels
//   Bin bin_at(const Pooling&, int r, int ph, int pw)     the bin of roi r; flags a bad roi, whose bins are empty
//   REAL pooled(const Pooling&, const Bin&, const REAL* x, int& at)   x: the channel's first pixel of image 0
//
// A unit of work is a roi and a slab of SLAB channels. Blocks of one column of the grid (blockIdx.x) take a contiguous range
// of the units, slab after slab: on one multiprocessor, they find the slab in its cache for every roi. Any grid works.
#pragma once
#include "roi.cuh"

constexpr int SLAB = 16;  // threads of a block: SLAB x any number
constexpr int TILE = 64;  // bins at a time

struct Pooling {
  Shape s;
  const REAL *rois, *x;   // x: channels last
  const REAL* weights;    // these two: ROIAlign's means only
  const int* spans;
  int* bad;
};

__device__ inline Bin bin_at(const Pooling& p, int r, int ph, int pw);
__device__ inline REAL pooled(const Pooling& p, const Bin& bin, const REAL* x, int& at);

// y, at: (R, C, PH, PW), either may be nullptr.
__device__ void pool_slabs(const Pooling& p, REAL* y, int* at) {
  __shared__ Bin bins[TILE];
  __shared__ REAL values[SLAB * TILE];
  __shared__ int places[SLAB * TILE];
  const Shape& s = p.s;
  const int slabs = (s.channels + SLAB - 1) / SLAB, all = s.pooled_h * s.pooled_w;
  const int lane = threadIdx.x, thread = threadIdx.y * SLAB + lane, threads = blockDim.y * SLAB;
  const long long units = (long long)slabs * s.rois, end = units * (blockIdx.x + 1) / gridDim.x;
  for (long long unit = units * blockIdx.x / gridDim.x + blockIdx.y; unit < end; unit += gridDim.y) {
    const int r = (int)(unit % s.rois), channel = (int)(unit / s.rois) * SLAB;
    const int channels = min(SLAB, s.channels - channel);
    for (int first = 0; first < all; first += TILE) {
      const int count = min(TILE, all - first);
      for (int b = thread; b < count; b += threads)
        bins[b] = bin_at(p, r, (first + b) / s.pooled_w, (first + b) % s.pooled_w);  // once for all channels
      __syncthreads();
      if (lane < channels)
        for (int b = threadIdx.y; b < count; b += blockDim.y) {
          int place = -1;
          values[lane * count + b] = pooled(p, bins[b], p.x + channel + lane, place);  // channel by channel, as in y
          places[lane * count + b] = place;
        }
      __syncthreads();
      // no barrier after this: the next round writes bins, which nobody reads now, and then waits before it writes values
      const unsigned start = ((unsigned)r * s.channels + channel) * all + first;
      if (count == all) {  // the slab's output is contiguous
        for (int i = thread; i < channels * count; i += threads) {
          if (y) y[start + i] = values[i];
          if (at) at[start + i] = places[i];
        }
      } else {
        for (int c = threadIdx.y; c < channels; c += blockDim.y)
          for (int b = lane; b < count; b += SLAB) {
            if (y) y[start + (unsigned)c * all + b] = values[c * count + b];
            if (at) at[start + (unsigned)c * all + b] = places[c * count + b];
          }
      }
    }
  }
}
