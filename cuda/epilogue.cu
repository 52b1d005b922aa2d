// The steps after a convolution in one pass: bias, BatchNorm with stored statistics, Scale, Bias, ReLU. See convolution.py.
//
// Each number is rounded as in the layers' own kernels, in their order, so the results have the same bits.
#include "common.cuh"
#include "planes.cuh"
#include "relu.cuh"
#include "statistics.cuh"

// y = rectified(((x + bias - mean) / std) * scale + shift + addend, slope); planes: images * channels; y may be x.
// A vector (channels) may be nullptr, which skips its step. mean_sum comes with var_sum, factor (1) and inverse_std, which is
// written for BatchNorm's backward.
extern "C" __global__ void epilogue(int planes, int positions, int channels, const REAL* x, const REAL* bias, const REAL* mean_sum,
                                    const REAL* var_sum, const REAL* factor, REAL eps, REAL* inverse_std, const REAL* scale,
                                    const REAL* shift, const REAL* addend, REAL slope, REAL* y) {
  const unsigned plane = plane_of_thread(), c = plane % (unsigned)channels;
  const REAL nothing = REAL(-0.0);  // +0 would turn -0 into +0
  const REAL first = bias ? bias[c] : nothing, factor_c = scale ? scale[c] : REAL(1);
  const REAL second = shift ? shift[c] : nothing, third = addend ? addend[c] : nothing;
  Statistics stored = {REAL(0), REAL(1)};
  if (mean_sum) {
    stored = stored_statistics(mean_sum[c], var_sum[c], factor[0], eps);
    if (plane < (unsigned)channels && blockIdx.y == 0 && threadIdx.x == 0) inverse_std[c] = stored.inverse_std;
  }
  POSITIONS(i, plane, planes, positions) {
    const REAL normalised = (x[i] + first - stored.mean) * stored.inverse_std;
    y[i] = rectified(normalised * factor_c + second + third, slope);
  }
}
