// Sigmoid: y = 1 / (1 + exp(-x)). See layers/neuron/functions.py.
#include "common.cuh"

// y may be x.
extern "C" __global__ void sigmoid(int count, const REAL* x, REAL* y) {
  LOOP(i, count) y[i] = tanh(x[i] * REAL(0.5)) * REAL(0.5) + REAL(0.5);
}

// dx = dy * y * (1 - y); dx may be dy.
extern "C" __global__ void sigmoid_backward(int count, const REAL* y, const REAL* dy, REAL* dx) {
  LOOP(i, count) dx[i] = dy[i] * (y[i] * (1 - y[i]));
}
