// Bias: y = x + bias along some axes. x is (before, lanes, after), bias (lanes). See layers/bias.py.
#include "common.cuh"
#include "sums.cuh"

// y may be x.
extern "C" __global__ void bias(int count, int lanes, int after, const REAL* x, const REAL* addend, REAL* y) {
  LOOP(i, count) y[i] = x[i] + addend[i / (unsigned)after % (unsigned)lanes];
}

// A block a lane: dbias[s] (+)= sum of dy over `numbers` = before * after numbers; add: whether it is added to.
extern "C" __global__ void bias_sums(int numbers, int lanes, int after, const REAL* dy, REAL* dbias, int add) {
  const unsigned s = blockIdx.x;
  double sum = 0;
  for (unsigned j = threadIdx.x; j < (unsigned)numbers; j += blockDim.x) sum += dy[channel_index(j, s, lanes, after)];
  sum = block_sum(sum);
  if (threadIdx.x == 0) dbias[s] = (add ? dbias[s] : REAL(0)) + REAL(sum);
}
