// SpatialProduct: every channel times one map of the image. See layers/elementwise/products.py.
#include "common.cuh"

// x, y: (N, channels, positions), count elements; s: (N, positions).
extern "C" __global__ void product(int count, int channels, int positions, const REAL* x, const REAL* s, REAL* y) {
  LOOP(i, count) {
    const unsigned image = i / (unsigned)positions / (unsigned)channels;
    y[i] = x[i] * s[image * positions + i % (unsigned)positions];
  }
}

// ds: count elements, each the sum over the channels of dy x.
extern "C" __global__ void map_gradient(int count, int channels, int positions, const REAL* dy, const REAL* x, REAL* ds) {
  LOOP(i, count) {
    const unsigned image = i / (unsigned)positions;
    unsigned at = image * channels * positions + i % (unsigned)positions;
    REAL sum = 0;
    for (int c = 0; c < channels; ++c, at += positions) sum += dy[at] * x[at];
    ds[i] = sum;
  }
}
