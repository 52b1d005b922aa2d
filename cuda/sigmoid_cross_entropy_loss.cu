// SigmoidCrossEntropyLoss. See layers/loss/sigmoid_cross_entropy_loss.py.
#include "loss.cuh"

// 1 if the target counts, 0 if it is ignored.
__device__ __forceinline__ REAL counts(REAL target, int ignores, int ignore) { return ignores && trunc(target) == ignore ? 0 : 1; }

// x, target: count elements.
extern "C" __global__ void sigmoid_cross_entropy(int count, const REAL* x, const REAL* target, int ignores, int ignore,
                                                 double* partial) {
  double sum = 0, counted = 0;
  LOOP(i, count) {
    const REAL value = x[i], kept = counts(target[i], ignores, ignore);
    sum += ((value > 0 ? value : REAL(0)) - value * target[i] + log1p(exp(-fabs(value)))) * kept;  // exp cannot overflow
    counted += kept;
  }
  put_sums(sum, counted, partial);
}

extern "C" __global__ void sigmoid_cross_entropy_backward(int count, const REAL* x, const REAL* target, int ignores, int ignore,
                                                          const REAL* dy, const double* divisor, REAL* dx) {
  const REAL scale = loss_scale(dy, *divisor);
  LOOP(i, count) {
    const REAL p = tanh(x[i] * REAL(0.5)) * REAL(0.5) + REAL(0.5);
    dx[i] = (p - target[i]) * counts(target[i], ignores, ignore) * scale;
  }
}
