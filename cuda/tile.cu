// Tile: x (before, after) to y (before, tiles, after). See layers/shape/reduction.py.
#include "common.cuh"

extern "C" __global__ void tile(int count, int tiles, int after, const REAL* x, REAL* y) {
  LOOP(i, count) y[i] = x[i / ((unsigned)tiles * (unsigned)after) * (unsigned)after + i % (unsigned)after];
}

// dx: count numbers, each the sum over its copies, in their order.
extern "C" __global__ void tile_backward(int count, int tiles, int after, const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const REAL* from = dy + i / (unsigned)after * (unsigned)tiles * (unsigned)after + i % (unsigned)after;
    REAL sum = 0;
    for (int t = 0; t < tiles; ++t) sum += from[t * after];
    dx[i] = sum;
  }
}
