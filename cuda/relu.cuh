// ReLU's function. See layers/neuron/relu.py.
#pragma once

// value where it is above 0, else slope * value; a NaN stays NaN. A slope of 1 changes nothing.
__device__ __forceinline__ REAL rectified(REAL value, REAL slope) {
  return value > 0 ? value : slope == 0 && value == value ? REAL(0) : value * slope;
}
