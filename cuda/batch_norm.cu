// BatchNorm over x (N, channels, positions). See layers/norm/batch_norm.py.
#include "common.cuh"
#include "planes.cuh"
#include "statistics.cuh"
#include "sums.cuh"

// The running sums' mean and 1 / sqrt(var + eps). One thread for each channel.
extern "C" __global__ void global_statistics(int channels, const REAL* mean_sum, const REAL* var_sum, const REAL* factor, REAL eps,
                                             REAL* mean, REAL* inverse_std) {
  LOOP(c, channels) {
    const Statistics stored = stored_statistics(mean_sum[c], var_sum[c], factor[0], eps);
    mean[c] = stored.mean;
    inverse_std[c] = stored.inverse_std;
  }
}

// One block for each channel of `numbers` numbers: the batch's mean and 1 / sqrt(var + eps). Both update the running sums.
extern "C" __global__ void batch_statistics(int numbers, int channels, int positions, const REAL* x, REAL eps, REAL fraction,
                                            REAL unbiased, REAL* mean, REAL* inverse_std, REAL* mean_sum, REAL* var_sum,
                                            REAL* factor) {
  const unsigned c = blockIdx.x;
  const Moments moments = channel_moments(x, c, numbers, channels, positions);
  if (threadIdx.x == 0) {
    mean[c] = moments.mean;
    inverse_std[c] = 1 / sqrt(moments.variance + eps);
    mean_sum[c] = fraction * mean_sum[c] + moments.mean;
    var_sum[c] = fraction * var_sum[c] + unbiased * moments.variance;
    if (c == 0) factor[0] = fraction * factor[0] + 1;
  }
}

// y = (x - mean) / std; y may be x; kept: nullptr, or a copy of y.
extern "C" __global__ void normalise(int planes, int positions, int channels, const REAL* x, const REAL* mean,
                                     const REAL* inverse_std, REAL* y, REAL* kept) {
  const unsigned plane = plane_of_thread(), c = plane % (unsigned)channels;
  const REAL middle = mean[c], factor = inverse_std[c];
  POSITIONS(i, plane, planes, positions) {
    const REAL value = (x[i] - middle) * factor;
    y[i] = value;
    if (kept) kept[i] = value;
  }
}

// One block for each channel: the means of dy and of dy * y.
extern "C" __global__ void gradient_means(int numbers, int channels, int positions, const REAL* dy, const REAL* y, REAL* mean,
                                          REAL* product) {
  const unsigned c = blockIdx.x;
  double sum = 0, products = 0;
  BLOCK_LOOP(j, numbers) {
    const unsigned i = channel_index(j, c, channels, positions);
    const double d = dy[i];
    sum += d;
    products += d * y[i];
  }
  sum = block_sum(sum);
  products = block_sum(products);
  if (threadIdx.x == 0) {
    mean[c] = REAL(sum / numbers);
    product[c] = REAL(products / numbers);
  }
}

// dx = (dy - mean - y * product) / std; dx may be dy.
extern "C" __global__ void batch_backward(int planes, int positions, int channels, const REAL* dy, const REAL* y, const REAL* mean,
                                          const REAL* product, const REAL* inverse_std, REAL* dx) {
  const unsigned plane = plane_of_thread(), c = plane % (unsigned)channels;
  const REAL middle = mean[c], along = product[c], factor = inverse_std[c];
  POSITIONS(i, plane, planes, positions) dx[i] = (dy[i] - middle - y[i] * along) * factor;
}
