// Softmax along the middle axis of x (outer, length, inner). See layers/loss/softmax.py.
#include "common.cuh"
#include "sums.cuh"

// One thread for each line: neighbouring threads read neighbouring numbers. y may be x.
extern "C" __global__ void softmax_lines(int lines, int length, int inner, const REAL* x, REAL* y) {
  LOOP(line, lines) {
    const unsigned start = line_start(line, length, inner);
    REAL most = x[start];
    for (int c = 1; c < length; ++c) most = fmax(most, x[start + c * inner]);
    double sum = 0;
    for (int c = 0; c < length; ++c) {
      const REAL power = exp(x[start + c * inner] - most);
      y[start + c * inner] = power;
      sum += power;
    }
    const REAL total = REAL(sum);
    for (int c = 0; c < length; ++c) y[start + c * inner] /= total;
  }
}

// dx = y * (dy - sum of dy * y). One thread for each line. dx may be dy.
extern "C" __global__ void softmax_lines_backward(int lines, int length, int inner, const REAL* y, const REAL* dy, REAL* dx) {
  LOOP(line, lines) {
    const unsigned start = line_start(line, length, inner);
    double sum = 0;
    for (int c = 0; c < length; ++c) sum += (double)dy[start + c * inner] * y[start + c * inner];
    const REAL total = REAL(sum);
    for (int c = 0; c < length; ++c) dx[start + c * inner] = (dy[start + c * inner] - total) * y[start + c * inner];
  }
}

// The greatest `mine` of a block's threads, returned to all of them.
__device__ REAL block_max(REAL mine) {
  __shared__ REAL part[1024];
  const unsigned t = threadIdx.x;
  part[t] = mine;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half; half /= 2) {
    if (t < half) part[t] = fmax(part[t], part[t + half]);
    __syncthreads();
  }
  return part[0];  // needs no barrier, because a kernel calls this once
}

// One block for each line, for an inner axis shorter than the line. y may be x.
extern "C" __global__ void softmax_rows(int length, int inner, const REAL* x, REAL* y) {
  const unsigned start = line_start(blockIdx.x, length, inner);
  REAL most = x[start];
  BLOCK_LOOP(c, length) most = fmax(most, x[start + c * inner]);
  most = block_max(most);
  double sum = 0;
  BLOCK_LOOP(c, length) {
    const REAL power = exp(x[start + c * inner] - most);
    y[start + c * inner] = power;
    sum += power;
  }
  const REAL total = REAL(block_sum(sum));
  BLOCK_LOOP(c, length) y[start + c * inner] /= total;
}

// softmax_lines_backward with a block for each line.
extern "C" __global__ void softmax_rows_backward(int length, int inner, const REAL* y, const REAL* dy, REAL* dx) {
  const unsigned start = line_start(blockIdx.x, length, inner);
  double sum = 0;
  BLOCK_LOOP(c, length) sum += (double)dy[start + c * inner] * y[start + c * inner];
  const REAL total = REAL(block_sum(sum));
  BLOCK_LOOP(c, length)
    dx[start + c * inner] = (dy[start + c * inner] - total) * y[start + c * inner];
}
