// Eltwise: product, weighted sum and maximum of two arrays. Further launches add more arrays. See
// layers/elementwise/eltwise.py.
//
// slope: of a ReLU after the layer, 1 for none. Only a top's last launch applies it.
#include "common.cuh"
#include "relu.cuh"

// y = a * b; y may be a or b.
extern "C" __global__ void product(int count, const REAL* a, const REAL* b, REAL slope, REAL* y) {
  LOOP(i, count) y[i] = rectified(a[i] * b[i], slope);
}

// y = a * a_coeff + b * b_coeff; y may be a or b.
extern "C" __global__ void weighted_sum(int count, const REAL* a, REAL a_coeff, const REAL* b, REAL b_coeff, REAL slope,
                                        REAL* y) {
  LOOP(i, count) y[i] = rectified(a[i] * a_coeff + b[i] * b_coeff, slope);
}

// y = max(a, b); winner: 0 where a is greater, else 1.
extern "C" __global__ void maximum(int count, const REAL* a, const REAL* b, REAL slope, REAL* y, int* winner) {
  LOOP(i, count) {
    const bool first = a[i] > b[i];
    y[i] = rectified(first ? a[i] : b[i], slope);
    winner[i] = first ? 0 : 1;
  }
}

// y = max(x, y); the winner is `index` where x is greater.
extern "C" __global__ void maximum_with(int count, const REAL* x, int index, REAL slope, REAL* y, int* winner) {
  LOOP(i, count) {
    const bool greater = x[i] > y[i];
    y[i] = rectified(greater ? x[i] : y[i], slope);
    if (greater) winner[i] = index;
  }
}

// dx = dy * coeff.
extern "C" __global__ void scaled(int count, const REAL* dy, REAL coeff, REAL* dx) {
  LOOP(i, count) dx[i] = dy[i] * coeff;
}

// dx = dy where the winner is `index`, else 0.
extern "C" __global__ void won(int count, const REAL* dy, const int* winner, int index, REAL* dx) {
  LOOP(i, count) dx[i] = winner[i] == index ? dy[i] : dy[i] * REAL(0);  // a product, as on the CPU, so that a NaN stays
}

// dx = y / x * dy.
extern "C" __global__ void quotient(int count, const REAL* y, const REAL* x, const REAL* dy, REAL* dx) {
  LOOP(i, count) dx[i] = y[i] / x[i] * dy[i];
}
