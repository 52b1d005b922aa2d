// EuclideanLoss. See layers/loss/euclidean_loss.py.
#include "loss.cuh"

// difference = x - target; count elements each.
extern "C" __global__ void euclidean_loss(int count, const REAL* x, const REAL* target, REAL* difference, double* partial) {
  double sum = 0;
  LOOP(i, count) {
    const REAL d = x[i] - target[i];
    difference[i] = d;
    sum += d * d;
  }
  put_sums(sum, 0, partial);
}

// dx, dtarget: may be nullptr; divisor: N.
extern "C" __global__ void euclidean_loss_backward(int count, const REAL* difference, const REAL* dy, double divisor,
                                                   REAL* dx, REAL* dtarget) {
  const REAL scale = loss_scale(dy, divisor);
  LOOP(i, count) {
    const REAL slope = difference[i] * scale;
    if (dx) dx[i] = slope;
    if (dtarget) dtarget[i] = -slope;
  }
}
