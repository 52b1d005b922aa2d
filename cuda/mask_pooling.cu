// MaskPooling: every channel times the image's mask. See layers/mask_pooling.py.
#include "common.cuh"

// x, y: (N, channels, positions), count elements; mask: (N, positions).
extern "C" __global__ void mask_pooling(int count, int channels, int positions, const REAL* x, const REAL* mask, REAL* y) {
  LOOP(i, count) {
    const unsigned image = i / (unsigned)positions / (unsigned)channels;
    y[i] = x[i] * mask[image * positions + i % (unsigned)positions];
  }
}

// dmask: count elements, each the sum over the channels of dy x.
extern "C" __global__ void mask_gradient(int count, int channels, int positions, const REAL* dy, const REAL* x, REAL* dmask) {
  LOOP(i, count) {
    const unsigned image = i / (unsigned)positions;
    unsigned at = image * channels * positions + i % (unsigned)positions;
    REAL sum = 0;
    for (int c = 0; c < channels; ++c, at += positions) sum += dy[at] * x[at];
    dmask[i] = sum;
  }
}
