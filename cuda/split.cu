// Split's backward: the sum of up to 4 arrays. See layers/shape/split.py.
#include "common.cuh"

// a, b, c, d, y: count elements; c and d may be nullptr, y may be any of them.
extern "C" __global__ void sum(int count, const REAL* a, const REAL* b, const REAL* c, const REAL* d, REAL* y) {
  LOOP(i, count) {
    REAL total = a[i] + b[i];
    if (c) total += c[i];
    if (d) total += d[i];
    y[i] = total;
  }
}
