// Forward of the layers that pool every channel over the same bins. The including file defines before:
//   struct Bin     a bin, the same for all channels, with an image. A kernel that runs before stores them in a table (R, PH,
// PW).
// and after:
//   Pack pooled(const Shape&, const Bin&, const Map&, int* at)      a thread's channels of y; at: PACK indices, initially -1
//
// A thread has a bin and PACK channels. A block has TILE bins and a slab of channels. All blocks process the tiles slab after
// slab, so that the slab lies in each multiprocessor's cache. Any one-dimensional grid works.
#pragma once
#include "roi.cuh"

constexpr int PACK = 16 / (int)sizeof(REAL);  // channels read at once
constexpr int LANES = SLAB / PACK;            // threads for each pixel of a slab
constexpr int TILE = 64;                      // bins
constexpr int THREADS = LANES * TILE;         // of a block
#if __CUDA_ARCH__ >= 800
constexpr int STACK = 6;  // blocks on a multiprocessor at a time: 40 registers for each thread
#else
constexpr int STACK = 4;
#endif

struct alignas(16) Pack {
  REAL of[PACK];
  __device__ void add(REAL weight, const Pack& x) {
#pragma unroll
    for (int k = 0; k < PACK; ++k) of[k] += weight * x.of[k];
  }
};

// A thread's channels of an image.
struct Map {
  const char* first;
  __device__ Pack operator[](int pixel) const { return *(const Pack*)(first + (long long)pixel * (LANES * 16)); }
};

static_assert(sizeof(Bin) <= 32, "BIN of roi.py");

__device__ inline Pack pooled(const Shape& s, const Bin& bin, const Map& map, int* at);

// The value where maxima start; 0 for an empty bin.
__device__ inline Pack start_of(bool empty) {
  Pack best;
#pragma unroll
  for (int k = 0; k < PACK; ++k) best.of[k] = empty ? REAL(0) : REAL(LOWEST);
  return best;
}

__device__ inline void take_greater(const Pack& value, int place, Pack& best, int* at) {
#pragma unroll
  for (int k = 0; k < PACK; ++k)
    if (value.of[k] > best.of[k]) best.of[k] = value.of[k], at[k] = place;  // never NaN; of equal values, the first
}

// map: see SLAB. y, at: (R, C, PH, PW); either may be nullptr.
__device__ void pool_slabs(const Shape& s, const Bin* table, const REAL* map, REAL* y, int* at) {
  __shared__ REAL values[SLAB][TILE + 2];  // + 2, so that a warp's numbers lie in different banks
  __shared__ int places[SLAB][TILE + 2];
  const unsigned all = s.pooled_h * s.pooled_w, bins = s.rois * all, tiles = bins / TILE + (bins % TILE > 0);  // of a slab
  const int slabs = slabs_of(s.channels), lane = threadIdx.x % LANES, mine = threadIdx.x / LANES;
  for (unsigned unit = blockIdx.x; unit < slabs * tiles; unit += gridDim.x) {
    const unsigned slab = unit / tiles, first = unit % tiles * TILE;
    if (first + mine < bins) {
      const Bin bin = table[first + mine];
      const long long plane = ((long long)bin.image * slabs + slab) * s.height * s.width;
      int place[PACK];
#pragma unroll
      for (int k = 0; k < PACK; ++k) place[k] = -1;
      const volatile long long start = plane * LANES + lane;  // volatile, to compute it once and not for each pixel
      const Pack value = pooled(s, bin, {(const char*)map + 16 * start}, place);
#pragma unroll
      for (int k = 0; k < PACK; ++k) {
        values[lane * PACK + k][mine] = value.of[k];
        if (at) places[lane * PACK + k][mine] = place[k];
      }
    }
    __syncthreads();
    const unsigned b = threadIdx.x % TILE, r = (first + b) / all, channel = slab * SLAB;
    const int channels = first + b < bins ? min(SLAB, s.channels - (int)channel) : 0;
    const unsigned to = (r * s.channels + channel) * all + (first + b - r * all);  // adjacent threads write adjacent bins
    for (int c = threadIdx.x / TILE; c < channels; c += LANES) {
      if (y) y[to + c * all] = values[c][b];
      if (at) at[to + c * all] = places[c][b];
    }
    __syncthreads();
  }
}
