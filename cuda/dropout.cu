// Dropout: y = x * mask * factor. See layers/neuron/dropout.py.
#include "common.cuh"

// mask: nullptr, or one byte for each element, 0 or 1; y may be x.
extern "C" __global__ void dropout(int count, const REAL* x, const unsigned char* mask, REAL factor, REAL* y) {
  LOOP(i, count) y[i] = mask ? x[i] * REAL(mask[i]) * factor : x[i] * factor;
}
