// Bias: y = x + bias along some axes. x is (before, lanes, after), bias (lanes). See layers/bias.py.
#include "common.cuh"
#include "planes.cuh"
#include "sums.cuh"

// planes: before * lanes; y may be x.
extern "C" __global__ void bias(int planes, int after, int lanes, const REAL* x, const REAL* bias, REAL* y) {
  const unsigned plane = plane_of_thread();
  const REAL addend = bias[plane % (unsigned)lanes];
  POSITIONS(i, plane, planes, after) y[i] = x[i] + addend;
}

// A block a lane: dbias[s] (+)= sum of dy over `numbers` = before * after numbers; add: whether it is added to.
extern "C" __global__ void bias_sums(int numbers, int lanes, int after, const REAL* dy, REAL* dbias, int add) {
  const unsigned s = blockIdx.x;
  double sum = 0;
  BLOCK_LOOP(j, numbers) sum += dy[channel_index(j, s, lanes, after)];
  put_block_sum(sum, add, dbias + s);
}
