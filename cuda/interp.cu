// Interp: maps resized bilinearly, with aligned corners. See layers/shape/interp.py.
// x is (maps, height, width). Its (h, w) pixels from (first, first) on become (out_h, out_w).
#include "common.cuh"

// The pixel before place i on an axis of `size`, and the weight of the pixel after it.
__device__ int place_before(unsigned i, float ratio, int size, REAL* share) {
  const float place = ratio * (float)i;
  int before = (int)place;
  if (before > size - 1) before = size - 1;
  *share = REAL(place - (float)before);
  return before;
}

// a and b, weighted. If the axis keeps its size, a alone, whatever b is.
__device__ REAL mix(REAL a, REAL b, REAL share, int same) { return same ? a : (1 - share) * a + share * b; }

extern "C" __global__ void interp(int count, int height, int width, int first, int h, int w, int out_h, int out_w, float ratio_h,
                                  float ratio_w, const REAL* x, REAL* y) {
  LOOP(i, count) {
    const unsigned j = i / (unsigned)out_w;
    REAL below, right;
    const int row = place_before(j % (unsigned)out_h, ratio_h, h, &below);
    const int column = place_before(i % (unsigned)out_w, ratio_w, w, &right);
    const int down = row < h - 1 ? width : 0, along = column < w - 1 ? 1 : 0;
    const REAL* p = x + (j / (unsigned)out_h * (unsigned)height + (unsigned)(row + first)) * (unsigned)width + (unsigned)(column + first);
    const int same = w == out_w;
    y[i] = mix(mix(p[0], p[along], right, same), mix(p[down], p[down + along], right, same), below, h == out_h);
  }
}

// The places on the other axis, `out` long, that may read pixel i: from *start to *end.
__device__ void readers(int i, float ratio, int out, int* start, int* end) {
  *start = 0;
  *end = out - 1;
  if (ratio > 0) {
    const float from = (float)(i - 1) / ratio, to = (float)(i + 1) / ratio;
    if (from - 1 > 0) *start = (int)(from - 1);
    if (to + 1 < (float)*end) *end = (int)(to + 1);
  }
}

// The weight with which place j reads pixel i, on an axis of `size`.
__device__ REAL share_of(int i, int j, float ratio, int size) {
  REAL share;
  const int before = place_before((unsigned)j, ratio, size, &share);
  const int after = before < size - 1 ? before + 1 : before;
  return (before == i ? 1 - share : REAL(0)) + (after == i ? share : REAL(0));
}

// One thread for each number of dx, which adds what places read there.
extern "C" __global__ void interp_backward(int count, int height, int width, int first, int h, int w, int out_h, int out_w,
                                           float ratio_h, float ratio_w, const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const unsigned line = i / (unsigned)width;
    const int column = (int)(i % (unsigned)width) - first, row = (int)(line % (unsigned)height) - first;
    REAL sum = 0;
    if (row >= 0 && row < h && column >= 0 && column < w) {
      const REAL* map = dy + line / (unsigned)height * (unsigned)out_h * (unsigned)out_w;
      int top, bottom, left, right;
      readers(row, ratio_h, out_h, &top, &bottom);
      readers(column, ratio_w, out_w, &left, &right);
      for (int r = top; r <= bottom; ++r) {
        const REAL of_row = share_of(row, r, ratio_h, h);
        if (of_row == 0) continue;
        REAL along = 0;
        for (int c = left; c <= right; ++c) {
          const REAL share = share_of(column, c, ratio_w, w);
          if (share != 0) along += map[r * out_w + c] * share;
        }
        sum += of_row * along;
      }
    }
    dx[i] = sum;
  }
}
