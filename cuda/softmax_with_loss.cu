// The cross entropy of SoftmaxWithLoss, from probabilities. See layers/loss/softmax_with_loss.py.
#include "labels.cuh"
#include "loss.cuh"

// prob (outer, classes, inner); labels and losses (or nullptr) (outer, inner), `positions` of them.
extern "C" __global__ void cross_entropy(int positions, int classes, int inner, const REAL* prob, const REAL* labels, int ignores,
                                         int ignore, int* wrong, REAL* losses, double* partial) {
  const REAL least = REAL(1.17549435e-38);  // FLT_MIN
  double sum = 0, counted = 0;
  LOOP(i, positions) {
    const int label = read_label(labels, i, positions, classes, ignores, ignore, wrong);
    REAL loss = 0;
    if (label >= 0) {
      const unsigned outer = i / (unsigned)inner;
      const REAL p = prob[(outer * classes + label) * inner + (i - outer * inner)];
      loss = -log(p < least ? least : p);
      counted += 1;
    }
    if (losses) losses[i] = loss;
    sum += loss;
  }
  put_sums(sum, counted, partial);
}

// dx (outer, classes, inner), `count` elements.
extern "C" __global__ void cross_entropy_backward(int count, int classes, int inner, const REAL* prob, const REAL* labels,
                                                  int ignores, int ignore, const REAL* dy, const double* divisor, REAL* dx) {
  const REAL scale = loss_scale(dy, *divisor);
  LOOP(i, count) {
    const unsigned line = i / (unsigned)inner, outer = line / (unsigned)classes, c = line - outer * classes;
    const int label = read_label(labels, outer * inner + (i - line * inner), 0, classes, ignores, ignore, nullptr);
    dx[i] = label < 0 ? REAL(0) : ((int)c == label ? prob[i] - 1 : prob[i]) * scale;
  }
}
