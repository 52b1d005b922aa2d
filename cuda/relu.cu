// ReLU: y = x where x > 0, else slope * x. A NaN stays NaN. See layers/neuron/relu.py.
#include "common.cuh"
#include "relu.cuh"

// x, y: count elements, y may be x; sign: nullptr, or a copy of x.
extern "C" __global__ void relu(int count, const REAL* x, REAL slope, REAL* y, REAL* sign) {
  LOOP(i, count) {
    const REAL value = x[i];
    if (sign) sign[i] = value;
    y[i] = rectified(value, slope);
  }
}

// sign: positive where x is; dy, dx: count elements, dx may be dy.
extern "C" __global__ void relu_backward(int count, const REAL* sign, const REAL* dy, REAL slope, REAL* dx) {
  LOOP(i, count) dx[i] = dy[i] * (sign[i] > 0 ? REAL(1) : slope);
}
