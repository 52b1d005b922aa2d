// Rois widened by a part of their size, for the pooling kernels. See WideningOperator in layers/roi/operator.py.
#include "common.cuh"

// rois (count, 5) -> wide (count, 5). Bad rois stay bad, and the pooling kernels report them.
extern "C" __global__ void widen(int count, double pad_ratio, const REAL* rois, REAL* wide) {
  LOOP(r, count) {
    const REAL* p = rois + 5LL * r;
    REAL* to = wide + 5LL * r;
    const REAL w = (p[3] - p[1] + REAL(1)) * REAL(pad_ratio), h = (p[4] - p[2] + REAL(1)) * REAL(pad_ratio);
    to[0] = p[0];
    to[1] = p[1] - w;
    to[2] = p[2] - h;
    to[3] = p[3] + w;
    to[4] = p[4] + h;
  }
}
