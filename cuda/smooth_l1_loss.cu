// SmoothL1Loss and SmoothL1LossOHEM. See layers/loss/smooth_l1_loss.py and layers/proposal/ohem.py.
#include "loss.cuh"

// square: sigma^2, near: 1 / sigma^2.
__device__ __forceinline__ REAL smooth_l1(REAL d, REAL square, REAL near) {
  // with low = |d|: square d^2 / 2; with low = near: |d| - near / 2, because square near = 1
  const REAL size = fabs(d), low = size < near ? size : near;
  return square * low * (size - REAL(0.5) * low);
}

// difference = inside * (x - target); count elements each; inside and outside: nullptr, or weights.
extern "C" __global__ void smooth_l1_loss(int count, const REAL* x, const REAL* target, const REAL* inside, const REAL* outside,
                                          REAL square, REAL near, REAL* difference, double* partial) {
  double sum = 0;
  LOOP(i, count) {
    REAL d = x[i] - target[i];
    if (inside) d *= inside[i];
    difference[i] = d;
    REAL loss = smooth_l1(d, square, near);
    if (outside) loss *= outside[i];
    sum += loss;
  }
  put_sums(sum, 0, partial);
}

// dx, dtarget: may be nullptr.
extern "C" __global__ void smooth_l1_loss_backward(int count, const REAL* difference, const REAL* inside, const REAL* outside,
                                                   REAL square, REAL near, const REAL* dy, double divisor, REAL* dx,
                                                   REAL* dtarget) {
  const REAL scale = loss_scale(dy, divisor);
  LOOP(i, count) {
    const REAL d = difference[i];
    REAL slope = (d < -near ? -near : d > near ? near : d) * square;
    if (inside) slope *= inside[i];
    if (outside) slope *= outside[i];
    slope *= scale;
    if (dx) dx[i] = slope;
    if (dtarget) dtarget[i] = -slope;
  }
}

// x, target, weight (or nullptr) and difference (outer, channels, inner); losses (outer, inner), or nullptr.
// `lanes` threads for each position.
extern "C" __global__ void smooth_l1_positions(int positions, int channels, int inner, int lanes, const REAL* x,
                                               const REAL* target, const REAL* weight, REAL* difference, REAL* losses,
                                               double* partial) {
  const unsigned lane = threadIdx.x % (unsigned)lanes, group = threadIdx.x / (unsigned)lanes;
  const unsigned groups = LOSS_THREADS / (unsigned)lanes;
  double total = 0;
  for (unsigned from = blockIdx.x * groups; from < (unsigned)positions; from += gridDim.x * groups) {
    const unsigned i = from + group;
    double sum = 0;
    if (i < (unsigned)positions) {
      const unsigned start = line_start(i, channels, inner);
      for (unsigned c = lane; c < (unsigned)channels; c += lanes) {
        const unsigned at = start + c * inner;
        REAL d = x[at] - target[at];
        if (weight) d *= weight[at];
        difference[at] = d;
        sum += smooth_l1(d, 1, 1);
      }
    }
    const REAL loss = (REAL)lanes_sum(sum, lanes);
    if (lane || i >= (unsigned)positions) continue;
    if (losses) losses[i] = loss;
    total += loss;
  }
  put_sums(total, 0, partial);
}
