// InfogainLoss, from probabilities. See layers/loss/multinomial_logistic_loss.py.
#include "labels.cuh"
#include "loss.cuh"

// prob (outer, classes, inner), matrix (classes, classes), labels (outer, inner), `positions` of them.
extern "C" __global__ void infogain(int positions, int classes, int inner, const REAL* prob, const REAL* matrix, REAL least,
                                    const REAL* labels, int ignores, int ignore, int* wrong, double* partial) {
  double sum = 0, counted = 0;
  LOOP(i, positions) {
    const int label = read_label(labels, i, positions, classes, ignores, ignore, wrong);
    if (label < 0) continue;
    const unsigned start = line_start(i, classes, inner);
    for (int c = 0; c < classes; ++c) {
      const REAL p = prob[start + c * inner];
      sum += -matrix[label * classes + c] * log(p < least ? least : p);
    }
    counted += 1;
  }
  put_sums(sum, counted, partial);
}

// dx (outer, classes, inner).
extern "C" __global__ void infogain_backward(int positions, int classes, int inner, const REAL* prob, const REAL* matrix,
                                             const REAL* labels, int ignores, int ignore, const REAL* dy, const double* divisor,
                                             REAL* dx) {
  const REAL scale = loss_scale(dy, *divisor);
  LOOP(i, positions) {
    const int label = read_label(labels, i, positions, classes, ignores, ignore, nullptr);
    const unsigned start = line_start(i, classes, inner);
    const REAL* row = matrix + (label < 0 ? 0 : label * classes);
    double sum = 0;
    for (int c = 0; c < classes; ++c) sum += row[c];
    for (int c = 0; c < classes; ++c)
      dx[start + c * inner] = label < 0 ? REAL(0) : (prob[start + c * inner] * (REAL)sum - row[c]) * scale;
  }
}
