// Scale: y = x * scale + bias along some axes. x is (before, lanes, after), scale and bias (lanes). See layers/scale.py.
#include "common.cuh"
#include "sums.cuh"

// y may be x; bias: nullptr for none; kept: nullptr, or where a copy of x goes.
extern "C" __global__ void scale(int count, int lanes, int after, const REAL* x, const REAL* factor, const REAL* bias, REAL* y,
                                 REAL* kept) {
  LOOP(i, count) {
    const unsigned s = i / (unsigned)after % (unsigned)lanes;
    const REAL value = x[i];
    REAL result = value * factor[s];
    if (bias) result += bias[s];
    if (kept) kept[i] = value;
    y[i] = result;
  }
}

// A block a lane: dscale[s] (+)= sum of dy * x, dbias[s] += sum of dy, over `numbers` = before * after numbers.
// dscale, dbias: nullptr where not wanted; add: whether dscale is added to.
extern "C" __global__ void scale_sums(int numbers, int lanes, int after, const REAL* dy, const REAL* x, REAL* dscale, int add,
                                      REAL* dbias) {
  const unsigned s = blockIdx.x;
  double products = 0, plain = 0;
  for (unsigned j = threadIdx.x; j < (unsigned)numbers; j += blockDim.x) {
    const unsigned i = channel_index(j, s, lanes, after);
    const double d = dy[i];
    plain += d;
    if (dscale) products += d * x[i];
  }
  if (dscale) {
    products = block_sum(products);
    if (threadIdx.x == 0) dscale[s] = (add ? dscale[s] : REAL(0)) + REAL(products);
  }
  if (dbias) {
    plain = block_sum(plain);
    if (threadIdx.x == 0) dbias[s] += REAL(plain);
  }
}
