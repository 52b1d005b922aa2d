// LRN: x / scale^beta, over channels or within a channel. See layers/norm/lrn.py.
//
// Sums have the CPU's order.
#include "common.cuh"

// The neighbourhood of a number: up to `reach` places on each side of it, on axes A and B. Across channels, A is the channel
// axis and B has length 1. Within a channel, A is the rows and B the columns.
struct Around {
  int a_length, a_stride, b_length, b_stride, reach;
};

__device__ REAL term(const REAL* v, int i, bool squared) { return squared ? v[i] * v[i] : v[i]; }

// The sum on axis A around number i: first the number itself, then one step before and after it, then two ...
__device__ REAL sum_on_axis(const REAL* v, int i, const Around& n, bool squared) {
  const int at = i / n.a_stride % n.a_length;
  REAL sum = term(v, i, squared);
  for (int step = 1; step <= n.reach; ++step) {
    if (at >= step) sum += term(v, i - step * n.a_stride, squared);
    if (at + step < n.a_length) sum += term(v, i + step * n.a_stride, squared);
  }
  return sum;
}

__device__ REAL sum_around(const REAL* v, int i, const Around& n, bool squared) {
  const int at = i / n.b_stride % n.b_length;
  REAL sum = sum_on_axis(v, i, n, squared);
  for (int step = 1; step <= n.reach && step < n.b_length; ++step) {
    if (at >= step) sum += sum_on_axis(v, i - step * n.b_stride, n, squared);
    if (at + step < n.b_length) sum += sum_on_axis(v, i + step * n.b_stride, n, squared);
  }
  return sum;
}

__device__ REAL powered(REAL scale, REAL beta) {
  return beta == REAL(0.75) ? sqrt(sqrt(scale)) * sqrt(scale) : pow(scale, beta);  // AlexNet's 0.75 by roots, as on the CPU
}

// y = x / (k + alpha * sum of x^2 around)^beta.
extern "C" __global__ void lrn(int count, Around around, REAL alpha, REAL beta, REAL k, const REAL* x, REAL* y) {
  LOOP(i, count) {
    const REAL scale = sum_around(x, i, around, true) * alpha + k;
    y[i] = x[i] / powered(scale, beta);
  }
}

// The first half of backward: direct = dy / scale^beta, ratio = direct * x / scale.
extern "C" __global__ void lrn_ratio(int count, Around around, REAL alpha, REAL beta, REAL k, const REAL* x, const REAL* dy,
                                     REAL* direct, REAL* ratio) {
  LOOP(i, count) {
    const REAL scale = sum_around(x, i, around, true) * alpha + k;
    direct[i] = dy[i] / powered(scale, beta);
    ratio[i] = direct[i] * x[i] / scale;
  }
}

// The second: dx -= factor * x * sum of ratio around.
extern "C" __global__ void lrn_subtract(int count, Around around, REAL factor, const REAL* x, const REAL* ratio, REAL* dx) {
  LOOP(i, count) dx[i] -= sum_around(ratio, i, around, false) * x[i] * factor;
}
