// MVN: rows of `numbers` numbers, normalised to mean 0 and, with scale, deviation 1. One block for each row. See
// layers/norm/mvn.py.
#include "common.cuh"
#include "sums.cuh"

// y may be x. scale: nullptr, or each row's divisor sqrt(var) + eps.
extern "C" __global__ void mvn(int numbers, const REAL* x, REAL eps, REAL* y, REAL* scale) {
  const REAL* from = x + (long long)blockIdx.x * numbers;
  REAL* to = y + (long long)blockIdx.x * numbers;
  double sum = 0, squares = 0;
  BLOCK_LOOP(i, numbers) sum += from[i];
  const REAL mean = REAL(block_sum(sum) / numbers);
  BLOCK_LOOP(i, numbers) {
    const REAL distance = from[i] - mean;
    squares += (double)distance * distance;
    to[i] = distance;  // x may be overwritten, because only this thread reads number i
  }
  if (!scale) return;
  const REAL deviation = sqrt(REAL(block_sum(squares) / numbers)) + eps;
  BLOCK_LOOP(i, numbers) to[i] /= deviation;
  if (threadIdx.x == 0) scale[blockIdx.x] = deviation;
}

// dx = (dy - mean(dy) - y * mean(y * dy)) / scale. scale: nullptr if y was not divided; then dx = dy - mean(dy). dx may be dy.
extern "C" __global__ void mvn_backward(int numbers, const REAL* y, const REAL* dy, const REAL* scale, REAL* dx) {
  const long long start = (long long)blockIdx.x * numbers;
  double sum = 0, products = 0;
  BLOCK_LOOP(i, numbers) {
    sum += dy[start + i];
    if (scale) products += (double)y[start + i] * dy[start + i];
  }
  const REAL mean = REAL(block_sum(sum) / numbers);
  const REAL product = scale ? REAL(block_sum(products) / numbers) : REAL(0);
  BLOCK_LOOP(i, numbers) {
    const REAL centred = dy[start + i] - mean;
    dx[start + i] = scale ? (centred - y[start + i] * product) / scale[blockIdx.x] : centred;
  }
}
