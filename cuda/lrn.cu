// LRN: x / scale^beta, over channels or within a channel. See layers/lrn.py.
//
// The neighbourhood of a number is `size` places on axis A of it, and on axis B: lengths and strides say which those are
// (across channels: A the channels, B of length 1; within a channel: A the rows, B the columns). Sums go in the CPU's order.
#include "common.cuh"

struct Axis {
  int length, stride;
};

__device__ REAL term(const REAL* v, int i, bool squared) { return squared ? v[i] * v[i] : v[i]; }

// The sum on axis A around number i, itself first, then one step before and after, two ...
__device__ REAL sum_on_axis(const REAL* v, int i, Axis a, int reach, bool squared) {
  const int at = i / a.stride % a.length;
  REAL sum = term(v, i, squared);
  for (int step = 1; step <= reach; ++step) {
    if (at >= step) sum += term(v, i - step * a.stride, squared);
    if (at + step < a.length) sum += term(v, i + step * a.stride, squared);
  }
  return sum;
}

__device__ REAL sum_around(const REAL* v, int i, Axis a, Axis b, int reach, bool squared) {
  const int at = i / b.stride % b.length;
  REAL sum = sum_on_axis(v, i, a, reach, squared);
  for (int step = 1; step <= reach && step < b.length; ++step) {
    if (at >= step) sum += sum_on_axis(v, i - step * b.stride, a, reach, squared);
    if (at + step < b.length) sum += sum_on_axis(v, i + step * b.stride, a, reach, squared);
  }
  return sum;
}

__device__ REAL powered(REAL scale, REAL beta) {
  return beta == REAL(0.75) ? sqrt(sqrt(scale)) * sqrt(scale) : pow(scale, beta);
}

// y = x / (k + alpha * sum of x^2 around)^beta; reach: places on each side.
extern "C" __global__ void lrn(int count, int a_length, int a_stride, int b_length, int b_stride, int reach, REAL alpha, REAL beta,
                               REAL k, const REAL* x, REAL* y) {
  LOOP(i, count) {
    const REAL scale = sum_around(x, i, {a_length, a_stride}, {b_length, b_stride}, reach, true) * alpha + k;
    y[i] = x[i] / powered(scale, beta);
  }
}

// The first half of backward: direct = dy / scale^beta, ratio = direct * x / scale.
extern "C" __global__ void lrn_ratio(int count, int a_length, int a_stride, int b_length, int b_stride, int reach, REAL alpha,
                                     REAL beta, REAL k, const REAL* x, const REAL* dy, REAL* direct, REAL* ratio) {
  LOOP(i, count) {
    const REAL scale = sum_around(x, i, {a_length, a_stride}, {b_length, b_stride}, reach, true) * alpha + k;
    direct[i] = dy[i] / powered(scale, beta);
    ratio[i] = direct[i] * x[i] / scale;
  }
}

// The second: dx -= factor * x * sum of ratio around.
extern "C" __global__ void lrn_spread(int count, int a_length, int a_stride, int b_length, int b_stride, int reach, REAL factor,
                                      const REAL* x, const REAL* ratio, REAL* dx) {
  LOOP(i, count)
    dx[i] -= sum_around(ratio, i, {a_length, a_stride}, {b_length, b_stride}, reach, false) * x[i] * factor;
}
