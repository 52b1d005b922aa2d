// Accuracy. See layers/accuracy.py.
#include "labels.cuh"
#include "loss.cuh"

// x (outer, classes, inner), labels (outer, inner), `positions` of them; `lanes` threads for each.
// seen: nullptr, or (2, classes) zeros that become how often each class is there, and how often it is right.
extern "C" __global__ void accuracy(int positions, int classes, int inner, int lanes, int top_k, const REAL* x, const REAL* labels,
                                    int ignores, int ignore, int* wrong, int* seen, double* partial) {
  const unsigned lane = threadIdx.x % (unsigned)lanes, group = threadIdx.x / (unsigned)lanes;
  const unsigned groups = LOSS_THREADS / (unsigned)lanes;
  double right = 0, counted = 0;
  for (unsigned from = blockIdx.x * groups; from < (unsigned)positions; from += gridDim.x * groups) {
    const unsigned i = from + group;
    int label = IGNORED;
    double above = 0;
    if (i < (unsigned)positions) {
      label = read_label(labels, i, positions, classes, ignores, ignore, wrong);
      const unsigned start = i / (unsigned)inner * (unsigned)classes * (unsigned)inner + i % (unsigned)inner;
      if (label >= 0)
        for (unsigned c = lane; c < (unsigned)classes; c += lanes) above += x[start + c * inner] >= x[start + label * inner];
    }
    above = lanes_sum(above, lanes);
    if (lane || label < 0) continue;
    const bool good = above <= top_k;
    right += good;
    counted += 1;
    if (!seen) continue;
    atomicAdd(&seen[label], 1);
    if (good) atomicAdd(&seen[classes + label], 1);
  }
  put_sums(right, counted, partial);
}

// y (classes): the share of each class that is right, 0 for an absent one.
extern "C" __global__ void accuracy_of_classes(int classes, const int* seen, REAL* y) {
  LOOP(c, classes) y[c] = (REAL)((double)seen[classes + c] / max(1, seen[c]));
}
