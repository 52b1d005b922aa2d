// Feature maps with the channels last, as the pooling kernels read them: adjacent threads take adjacent channels.
#include "common.cuh"

constexpr int SIDE = 32;

// x (images, channels, pixels) -> y (images, pixels, channels). Blocks of 32 x 8 threads; grid (any, any): tiles of 32 x 32.
extern "C" __global__ void channels_last(int images, int channels, int pixels, const REAL* x, REAL* y) {
  __shared__ REAL tile[SIDE][SIDE + 1];  // + 1: the numbers of a column lie in different banks
  const int across = (pixels + SIDE - 1) / SIDE, down = (channels + SIDE - 1) / SIDE;
  const long long tiles = (long long)across * down * images;
  for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int pixel = (int)(t % across) * SIDE, channel = (int)(t / across % down) * SIDE;
    const unsigned start = (unsigned)(t / across / down) * channels * pixels;
    for (int i = threadIdx.y; i < SIDE; i += blockDim.y)
      if (channel + i < channels && pixel + (int)threadIdx.x < pixels)
        tile[i][threadIdx.x] = x[start + (unsigned)(channel + i) * pixels + pixel + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < SIDE; i += blockDim.y)
      if (pixel + i < pixels && channel + (int)threadIdx.x < channels)
        y[start + (unsigned)(pixel + i) * channels + channel + threadIdx.x] = tile[threadIdx.x][i];
    __syncthreads();
  }
}
