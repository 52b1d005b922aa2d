// Accuracy. See layers/metric/accuracy.py.
#include "labels.cuh"
#include "loss.cuh"

// x (outer, classes, inner), labels (outer, inner), `positions` of them; `lanes` threads for each.
// seen: nullptr, or (2, classes), zero at first: counts of each class's labels, and of its correct ones.
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
      const unsigned start = line_start(i, classes, inner);
      if (label >= 0)
        for (unsigned c = lane; c < (unsigned)classes; c += lanes) above += x[start + c * inner] >= x[start + label * inner];
    }
    above = lanes_sum(above, lanes);
    if (lane || label < 0) continue;
    const bool good = above <= top_k;  // above includes the label itself
    right += good;
    counted += 1;
    if (!seen) continue;
    atomicAdd(&seen[label], 1);  // adding integers gives the same sum in any order
    if (good) atomicAdd(&seen[classes + label], 1);
  }
  put_sums(right, counted, partial);
}

// y (classes): the accuracy of each class, 0 for a class without labels.
extern "C" __global__ void accuracy_of_classes(int classes, const int* seen, REAL* y) {
  LOOP(c, classes) y[c] = (REAL)((double)seen[classes + c] / max(1, seen[c]));
}
