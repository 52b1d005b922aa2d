// ReLU's function. See layers/neuron/relu.py.
#pragma once

// value if above 0, else slope * value; keeps NaN. A slope of 1 changes nothing.
__device__ __forceinline__ REAL rectified(REAL value, REAL slope) {
  return value > 0 ? value : slope == 0 && value == value ? REAL(0) : value * slope;
}
