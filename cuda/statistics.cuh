// BatchNorm's stored statistics. See layers/norm/batch_norm.py.
#pragma once

struct Statistics {
  REAL mean, inverse_std;
};

// The mean and 1 / sqrt(var + eps) from a channel's running sums. factor 0: mean and variance 0.
__device__ __forceinline__ Statistics stored_statistics(REAL mean_sum, REAL var_sum, REAL factor, REAL eps) {
  const REAL inverse = factor != 0 ? 1 / factor : REAL(0);
  return {mean_sum * inverse, 1 / sqrt(var_sum * inverse + eps)};
}
