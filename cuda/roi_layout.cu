// Feature maps in slabs of channels, as the pooling kernels read them: a pixel's channels are adjacent.
#include "roi.cuh"

constexpr int TILE = 64;  // pixels

// x (images, channels, pixels) -> y (images, slabs, pixels, SLAB). Any grid.
extern "C" __global__ void slabs(int images, int channels, int pixels, const REAL* x, REAL* y) {
  __shared__ REAL tile[SLAB][TILE + 1];  // + 1: the numbers of a column lie in different banks
  const int across = (pixels + TILE - 1) / TILE, slabs = slabs_of(channels);
  const long long tiles = (long long)images * slabs * across;
  for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const long long plane = t / across;
    const int image = (int)(plane / slabs), channel = (int)(plane % slabs) * SLAB, pixel = (int)(t % across) * TILE;
    const int count = min(TILE, pixels - pixel);
    const REAL* from = x + ((long long)image * channels + channel) * pixels + pixel;
    BLOCK_LOOP(i, SLAB * TILE) {
      const int c = i / TILE, p = i % TILE;
      tile[c][p] = p < count && channel + c < channels ? from[(long long)c * pixels + p] : REAL(0);
    }
    __syncthreads();
    BLOCK_LOOP(i, count * SLAB) y[(plane * pixels + pixel) * SLAB + i] = tile[i % SLAB][i / SLAB];
    __syncthreads();
  }
}
