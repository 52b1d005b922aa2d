// BN over x (N, channels, positions). See layers/norm/bn.py.
#include "common.cuh"
#include "planes.cuh"
#include "sums.cuh"

// One thread for each channel: the stored mean and 1 / sqrt(var + eps), or 0 and 1 if none are stored (nullptr).
extern "C" __global__ void stored_statistics(int channels, const REAL* stored_mean, const REAL* stored_var, REAL eps, REAL* mean,
                                             REAL* inverse_std) {
  LOOP(c, channels) {
    mean[c] = stored_mean ? stored_mean[c] : REAL(0);
    inverse_std[c] = stored_var ? 1 / sqrt(stored_var[c] + eps) : REAL(1);
  }
}

// One block for each channel of `numbers` numbers: the batch's mean and 1 / sqrt(var + eps). running_*, shown_*: may be
// nullptr. correction: a factor of the variance in running_var.
extern "C" __global__ void batch_statistics(int numbers, int channels, int positions, const REAL* x, REAL eps, REAL momentum,
                                            REAL correction, REAL* mean, REAL* inverse_std, REAL* running_mean,
                                            REAL* running_var, REAL* shown_mean, REAL* shown_var) {
  const unsigned c = blockIdx.x;
  const Moments moments = channel_moments(x, c, numbers, channels, positions);
  if (threadIdx.x == 0) {
    mean[c] = moments.mean;
    inverse_std[c] = 1 / sqrt(moments.variance + eps);
    if (running_mean) {
      running_mean[c] = momentum * running_mean[c] + (1 - momentum) * moments.mean;
      running_var[c] = momentum * running_var[c] + (1 - momentum) * (moments.variance * correction);
    }
    if (shown_mean) {
      shown_mean[c] = moments.mean;
      shown_var[c] = moments.variance;
    }
  }
}

// y = slope * (x - mean) * inverse_std + bias; y may be x. kept: nullptr, or backward's input: (x - mean) * inverse_std
// (keep_normalised) or x.
extern "C" __global__ void bn(int planes, int positions, int channels, const REAL* x, const REAL* mean, const REAL* inverse_std,
                              const REAL* slope, const REAL* bias, REAL* y, REAL* kept, int keep_normalised) {
  const unsigned plane = plane_of_thread(), c = plane % (unsigned)channels;
  const REAL middle = mean[c], factor = inverse_std[c], scale = slope[c], shift = bias[c];
  POSITIONS(i, plane, planes, positions) {
    const REAL value = x[i], normalised = (value - middle) * factor;
    y[i] = normalised * scale + shift;
    if (kept) kept[i] = keep_normalised ? normalised : value;
  }
}

// One block for each channel: dslope += sum of dy * n, dbias += sum of dy; with mean_dy and mean_product also the means of
// both.
// n: kept, or with a mean (kept - mean) * inverse_std. dslope, dbias, mean, mean_dy: may be nullptr.
extern "C" __global__ void bn_sums(int numbers, int channels, int positions, const REAL* dy, const REAL* kept, const REAL* mean,
                                   const REAL* inverse_std, REAL* dslope, REAL* dbias, REAL* mean_dy, REAL* mean_product) {
  const unsigned c = blockIdx.x;
  const REAL middle = mean ? mean[c] : REAL(0), factor = mean ? inverse_std[c] : REAL(1);
  double sum = 0, products = 0;
  BLOCK_LOOP(j, numbers) {
    const unsigned i = channel_index(j, c, channels, positions);
    const double d = dy[i];
    sum += d;
    products += d * (kept[i] - middle);
  }
  sum = block_sum(sum);
  products = block_sum(products) * factor;
  if (threadIdx.x == 0) {
    if (dslope) dslope[c] += REAL(products);
    if (dbias) dbias[c] += REAL(sum);
    if (mean_dy) {
      mean_dy[c] = REAL(sum / numbers);
      mean_product[c] = REAL(products / numbers);
    }
  }
}

// dx = (dy - mean_dy - n * mean_product) * inverse_std * slope; without means, dy * inverse_std * slope. dx may be dy.
extern "C" __global__ void bn_backward(int planes, int positions, int channels, const REAL* dy, const REAL* n, const REAL* mean_dy,
                                       const REAL* mean_product, const REAL* inverse_std, const REAL* slope, REAL* dx) {
  const unsigned plane = plane_of_thread(), c = plane % (unsigned)channels;
  const REAL factor = inverse_std[c] * slope[c], middle = mean_dy ? mean_dy[c] : REAL(0), along = mean_dy ? mean_product[c] : REAL(0);
  POSITIONS(i, plane, planes, positions) dx[i] = mean_dy ? (dy[i] - middle - n[i] * along) * factor : dy[i] * factor;
}
