// Filter: the items of x (N, width) that are kept, y (M, width). See layers/shape/items.py.
#include "common.cuh"

// y[m] = x[kept[m]].
extern "C" __global__ void filter(int count, int width, const int* kept, const REAL* x, REAL* y) {
  LOOP(i, count) y[i] = x[(unsigned)kept[i / (unsigned)width] * (unsigned)width + i % (unsigned)width];
}

// dx[n] = dy[place[n]], 0 where place[n] is -1. count: dx's elements.
extern "C" __global__ void filter_backward(int count, int width, const int* place, const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const int item = place[i / (unsigned)width];
    dx[i] = item < 0 ? REAL(0) : dy[(unsigned)item * (unsigned)width + i % (unsigned)width];
  }
}
