// Normalize over x (N, channels, positions). See layers/norm/normalize.py.
//
// Each image has `groups` lengths: one for each position, or one for all. scale: one number, or (shared = 0) one for each
// channel.
#include "common.cuh"
#include "sums.cuh"

__device__ REAL scale_of(unsigned i, int channels, int positions, const REAL* scale, int shared) {
  return scale[shared ? 0 : i / (unsigned)positions % (unsigned)channels];
}

__device__ unsigned length_of(unsigned i, int channels, int positions, int groups) {
  return i / ((unsigned)channels * (unsigned)positions) * groups + (groups == 1 ? 0 : i % (unsigned)positions);
}

// A term of a sum: x^2, or with dy, scale * dy * x.
__device__ double term(unsigned i, int channels, int positions, const REAL* x, const REAL* dy, const REAL* scale, int shared) {
  const double value = x[i];
  return dy ? dy[i] * scale_of(i, channels, positions, scale, shared) * value : value * value;
}

// One block for each image. Without dy: the length sqrt(sum of x^2 + eps). With dy: the sum of scale * dy * x.
extern "C" __global__ void image_sums(int channels, int positions, const REAL* x, const REAL* dy, const REAL* scale, int shared,
                                      REAL eps, REAL* result) {
  const unsigned numbers = (unsigned)channels * (unsigned)positions;
  double sum = 0;
  BLOCK_LOOP(j, numbers)
    sum += term(blockIdx.x * numbers + j, channels, positions, x, dy, scale, shared);
  sum = block_sum(sum);
  if (threadIdx.x == 0) result[blockIdx.x] = dy ? REAL(sum) : sqrt(REAL(sum) + eps);
}

// The same sums over the channels at each position. A block has 32 positions with 16 threads each.
extern "C" __global__ void position_sums(int lengths, int channels, int positions, const REAL* x, const REAL* dy, const REAL* scale,
                                         int shared, REAL eps, REAL* result) {
  __shared__ double part[16][32];
  const unsigned at = blockIdx.x * 32 + threadIdx.x;
  const unsigned start = line_start(at, channels, positions);
  double sum = 0;
  if (at < (unsigned)lengths)
    for (unsigned c = threadIdx.y; c < (unsigned)channels; c += 16)
      sum += term(start + c * positions, channels, positions, x, dy, scale, shared);
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && at < (unsigned)lengths) {
    for (int k = 1; k < 16; ++k) sum += part[k][threadIdx.x];
    result[at] = dy ? REAL(sum) : sqrt(REAL(sum) + eps);
  }
}

// y = x / norm * scale.
extern "C" __global__ void normalize(int count, int channels, int positions, int groups, const REAL* x, const REAL* norm,
                                     const REAL* scale, int shared, REAL* y) {
  LOOP(i, count)
    y[i] = x[i] / norm[length_of(i, channels, positions, groups)] * scale_of(i, channels, positions, scale, shared);
}

// dx = (g - x * along / norm^2) / norm with g = scale * dy.
extern "C" __global__ void normalize_backward(int count, int channels, int positions, int groups, const REAL* x, const REAL* norm,
                                              const REAL* scale, int shared, const REAL* along, const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const unsigned group = length_of(i, channels, positions, groups);
    const REAL length = norm[group], g = dy[i] * scale_of(i, channels, positions, scale, shared);
    dx[i] = (g - x[i] * (along[group] / (length * length))) / length;
  }
}

// dscale += sum of dy * x / norm. One block for each channel of `numbers` numbers, or (shared) one block for all.
extern "C" __global__ void scale_sums(int numbers, int channels, int positions, int groups, const REAL* x, const REAL* norm,
                                      int shared, const REAL* dy, REAL* dscale) {
  double sum = 0;
  BLOCK_LOOP(j, numbers) {
    const unsigned i = shared ? j : channel_index(j, blockIdx.x, channels, positions);
    sum += dy[i] * x[i] / norm[length_of(i, channels, positions, groups)];
  }
  put_block_sum(sum, true, dscale + blockIdx.x);
}
