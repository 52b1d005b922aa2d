// Bias: y = x + bias along some axes. x is (before, lanes, after), bias (lanes). See layers/bias.py.
#include "common.cuh"
#include "planes.cuh"
#include "sums.cuh"

// planes: before * lanes; y may be x.
extern "C" __global__ void bias(int planes, int after, int lanes, const REAL* x, const REAL* bias, REAL* y) {
  const unsigned plane = plane_of_thread();
  if (plane >= (unsigned)planes) return;
  const REAL addend = bias[plane % (unsigned)lanes];
  POSITIONS(i, plane, after) y[i] = x[i] + addend;
}

// A block a lane: dbias[s] (+)= sum of dy over `numbers` = before * after numbers; add: whether it is added to.
extern "C" __global__ void bias_sums(int numbers, int lanes, int after, const REAL* dy, REAL* dbias, int add) {
  const unsigned s = blockIdx.x;
  double sum = 0;
  for (unsigned j = threadIdx.x; j < (unsigned)numbers; j += blockDim.x) sum += dy[channel_index(j, s, lanes, after)];
  sum = block_sum(sum);
  if (threadIdx.x == 0) dbias[s] = (add ? dbias[s] : REAL(0)) + REAL(sum);
}
