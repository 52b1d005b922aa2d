// ArgMax along the middle axis of x (outer, length, inner): a block a line. See layers/metric/arg_max.py.
#include "common.cuh"

struct Found {
  REAL value;
  int index;  // -1: none
};

// Whether a precedes b: it is greater, or equal with a larger index. NaN is the greatest value if nan_first, else the least.
__device__ bool before(Found a, Found b, bool nan_first) {
  if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return nan_first == a_nan;
  return a.value > b.value || ((a_nan || a.value == b.value) && a.index > b.index);
}

// The first top_k of each line: indices and values (nullptr: unwanted). Line l goes to [l / inner * step + k * inner + l %
// inner].
extern "C" __global__ void arg_max(int length, int inner, int top_k, int step, const REAL* x, REAL* indices, REAL* values) {
  __shared__ REAL value[1024];
  __shared__ int index[1024];
  const unsigned t = threadIdx.x, outer = blockIdx.x / (unsigned)inner, column = blockIdx.x % (unsigned)inner;
  const REAL* line = x + line_start(blockIdx.x, length, inner);
  Found last = {0, -1};
  for (int k = 0; k < top_k; ++k) {
    Found best = {0, -1};
    for (unsigned i = t; i < (unsigned)length; i += blockDim.x) {
      const Found one = {line[i * inner], (int)i};
      // The best one after the last one found.
      if ((last.index < 0 || before(last, one, top_k == 1)) && before(one, best, top_k == 1)) best = one;
    }
    value[t] = best.value;
    index[t] = best.index;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
      if (t < half && before({value[t + half], index[t + half]}, {value[t], index[t]}, top_k == 1)) {
        value[t] = value[t + half];
        index[t] = index[t + half];
      }
      __syncthreads();
    }
    last = {value[0], index[0]};
    __syncthreads();  // before the next round overwrites both
    if (t == 0) {
      const unsigned at = outer * (unsigned)step + k * inner + column;
      if (indices) indices[at] = REAL(last.index);
      if (values) values[at] = last.value;
    }
  }
}

// The same for top_k 1, with one thread for each line: neighbouring threads read neighbouring numbers.
extern "C" __global__ void arg_max_lines(int lines, int length, int inner, const REAL* x, REAL* indices, REAL* values) {
  LOOP(l, lines) {
    const REAL* line = x + line_start(l, length, inner);
    Found best = {0, -1};
    for (unsigned i = 0; i < (unsigned)length; ++i) {
      const Found one = {line[i * inner], (int)i};
      if (before(one, best, true)) best = one;
    }
    if (indices) indices[l] = REAL(best.index);
    if (values) values[l] = best.value;
  }
}
