// Copies in the order in which the pooling kernels read: the channels of a pixel, or of a bin, are adjacent.
#include "roi.cuh"

constexpr int TILE = 64;  // pixels

// x (images, channels, pixels) -> y (images, slabs, pixels, SLAB). Any grid works.
extern "C" __global__ void slabs(int images, int channels, int pixels, const REAL* x, REAL* y) {
  __shared__ REAL tile[SLAB][TILE + 1];  // + 1, so that a column's numbers lie in different banks
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

constexpr int SIDE = 32;

// x (count, rows, columns) -> y (count, columns, rows). Blocks of SIDE x 8 threads; any grid works. Tiles of SIDE x SIDE.
extern "C" __global__ void transpose(int count, int rows, int columns, const REAL* x, REAL* y) {
  __shared__ REAL tile[SIDE][SIDE + 1];  // + 1, so that a column's numbers lie in different banks
  const int across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE, lane = threadIdx.x;
  const long long tiles = (long long)across * down * count;
  for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int column = (int)(t % across) * SIDE, row = (int)(t / across % down) * SIDE;
    const unsigned start = (unsigned)(t / across / down) * rows * columns;
    for (int i = threadIdx.y; i < SIDE; i += blockDim.y)
      if (row + i < rows && column + lane < columns) tile[i][lane] = x[start + (unsigned)(row + i) * columns + column + lane];
    __syncthreads();
    for (int i = threadIdx.y; i < SIDE; i += blockDim.y)
      if (column + i < columns && row + lane < rows) y[start + (unsigned)(column + i) * rows + row + lane] = tile[lane][i];
    __syncthreads();
  }
}
