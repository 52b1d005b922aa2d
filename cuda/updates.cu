// The solvers' update rules. The operations are the same as in minicaffe/training/updates.py, one by one.
#include "common.cuh"
#include "sums.cuh"

enum { SGD, NESTEROV, ADAGRAD, RMSPROP, ADADELTA, ADAM };  // updates.py's RULES

__device__ __forceinline__ void average(REAL* at, REAL value, double keep) {
  REAL now = *at * (REAL)keep;
  now += (REAL)(1 - keep) * value;
  *at = now;
}

// Subtracts the step from data and writes it to diff. first, second: the rule's histories, or nullptr. count elements each.
// scale: nullptr, or the factor that clips the gradient; passes: the number of summed passes; l1: whether the decay is L1.
extern "C" __global__ void update(int rule, int count, REAL* data, REAL* diff, REAL* first, REAL* second, const REAL* scale,
                                  int passes, REAL decay, int l1, REAL rate, double keep, double keep2, REAL delta) {
  LOOP(i, count) {
    const REAL w = data[i];
    REAL g = diff[i];
    if (scale) g *= *scale;
    if (passes > 1) g /= passes;
    if (decay != 0) g += decay * (!l1 || w != w ? w : REAL((w > 0) - (w < 0)));  // the sign of NaN is NaN
    if (rule == SGD) {
      REAL h = first[i] * (REAL)keep;
      h += g * rate;
      first[i] = g = h;
    } else if (rule == NESTEROV) {
      const REAL before = (REAL)keep * first[i], h = before + g * rate;
      first[i] = h;
      g = h * (REAL)(1 + keep) - before;
    } else if (rule == ADADELTA) {
      average(first + i, g * g, keep);
      g *= sqrt((second[i] + delta) / (first[i] + delta));
      average(second + i, g * g, keep);
      g *= rate;
    } else {
      const REAL square = g * g;
      if (rule == ADAGRAD) first[i] += square;
      if (rule == RMSPROP) average(first + i, square, keep);
      if (rule == ADAM) {
        average(first + i, g, keep);
        average(second + i, square, keep2);
        g = first[i];
      }
      g /= sqrt(rule == ADAM ? second[i] : first[i]) + delta;
      g *= rate;
    }
    diff[i] = g;
    data[i] = w - g;
  }
}

// partial: a sum of squares for each block. A block has a power of 2 of threads.
extern "C" __global__ void sum_squares(int count, const REAL* diff, double* partial) {
  double sum = 0;
  LOOP(i, count) sum += (double)diff[i] * diff[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// scale: the factor that limits the norm of gradients to `limit`, given their squares. One block.
extern "C" __global__ void clip_scale(int count, const double* partial, double limit, REAL* scale) {
  double sum = 0;
  BLOCK_LOOP(i, count) sum += partial[i];
  const double norm = sqrt(block_sum(sum));
  if (threadIdx.x == 0) *scale = norm > limit ? (REAL)(limit / norm) : REAL(1);
}
