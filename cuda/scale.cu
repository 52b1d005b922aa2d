// Scale and Bias: y = x * scale + bias along some axes. x is (before, lanes, after), scale and bias (lanes). See
// layers/elementwise/scale.py.
#include "common.cuh"
#include "planes.cuh"
#include "sums.cuh"

// planes: before * lanes; y may be x; scale, bias: may be nullptr; kept: nullptr, or a copy of x.
extern "C" __global__ void scale(int planes, int after, int lanes, const REAL* x, const REAL* scale, const REAL* bias, REAL* y,
                                 REAL* kept) {
  const unsigned plane = plane_of_thread();
  const unsigned s = plane % (unsigned)lanes;
  const REAL factor = scale ? scale[s] : REAL(1), addend = bias ? bias[s] : REAL(0);
  POSITIONS(i, plane, planes, after) {
    const REAL value = x[i];
    if (kept) kept[i] = value;
    y[i] = bias ? value * factor + addend : value * factor;
  }
}

// One block for each lane: dscale[s] = sum of dy * x, dbias[s] = sum of dy, over `numbers` = before * after numbers.
// dscale, dbias: may be nullptr. add_*: whether to add the sums to them.
extern "C" __global__ void scale_sums(int numbers, int lanes, int after, const REAL* dy, const REAL* x, REAL* dscale, int add_scale,
                                      REAL* dbias, int add_bias) {
  const unsigned s = blockIdx.x;
  double products = 0, plain = 0;
  BLOCK_LOOP(j, numbers) {
    const unsigned i = channel_index(j, s, lanes, after);
    const double d = dy[i];
    plain += d;
    if (dscale) products += d * x[i];
  }
  if (dscale) put_block_sum(products, add_scale, dscale + s);
  if (dbias) put_block_sum(plain, add_bias, dbias + s);
}
