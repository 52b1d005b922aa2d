// Reduction of rows of `numbers` numbers. operation: 1 SUM, 2 ASUM, 3 SUMSQ, 4 MEAN (a SUM with another coeff). See layers/shape/reduction.py.
#include "common.cuh"
#include "sums.cuh"

// One block for each row.
extern "C" __global__ void reduction(int numbers, int operation, REAL coeff, const REAL* x, REAL* y) {
  const REAL* row = x + (long long)blockIdx.x * numbers;
  double sum = 0;
  BLOCK_LOOP(i, numbers) {
    const double value = row[i];
    sum += operation == 2 ? fabs(value) : operation == 3 ? value * value : value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = coeff * REAL(sum);
}

extern "C" __global__ void reduction_backward(int count, int numbers, int operation, REAL coeff, const REAL* x, const REAL* dy,
                                              REAL* dx) {
  LOOP(i, count) {
    const REAL d = coeff * dy[i / (unsigned)numbers], value = x[i];
    dx[i] = operation == 2 ? (value > 0 ? d : value < 0 ? -d : value * d) : operation == 3 ? value * (2 * d) : d;
  }
}
