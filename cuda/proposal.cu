// Proposal: from the RPN's maps to sorted boxes, and from kept boxes to rois. See layers/proposal/proposal.py.
#include "sort.cuh"

__device__ __forceinline__ REAL clipped(REAL x, REAL high) {  // keeps NaN
  x = x < 0 ? REAL(0) : x;
  return x > high ? high : x;
}

// All boxes of a map, in the order row, column, anchor, and their keys. Boxes that are too small get LEFT_OUT.
// scores (2 anchors, H, W), deltas (4 anchors, H, W); info: height, width, scale; reference (anchors, 4);
// normal: nullptr, or 4 deviations and 4 means. boxes (H W anchors, 4). *bad is set if info does not describe an image.
extern "C" __global__ void proposal_boxes(int anchors, int height, int width, int stride, const REAL* scores, const REAL* deltas,
                                          const REAL* info, const double* reference, const REAL* normal, REAL min_size,
                                          REAL* boxes, KEY* keys, int* bad) {
  const int plane = height * width;
  const REAL bottom = info[0] - 1, right = info[1] - 1, least = min_size * info[2];
  LOOP(i, plane * anchors) {
    if (i == 0)
      for (int k = 0; k < 3; ++k)
        if (!(info[k] > 0 && info[k] - info[k] == 0)) *bad = 1;  // inf - inf is NaN
    const int a = i / plane, at = i - a * plane;  // adjacent threads read adjacent places of the maps
    const int y = at / width, x = at - y * width;
    REAL d[4];
    for (int k = 0; k < 4; ++k) {
      d[k] = deltas[(4 * a + k) * plane + at];
      if (normal) d[k] = d[k] * normal[k] + normal[4 + k];
    }
    REAL low[2], high[2];
    for (int k = 0; k < 2; ++k) {
      const double shift = k ? (double)y * stride : (double)x * stride;
      const REAL from = (REAL)(shift + reference[4 * a + k]), to = (REAL)(shift + reference[4 * a + 2 + k]);
      const REAL size = to - from + 1;
      const REAL middle = d[k] * size + (from + REAL(0.5) * size), half = exp(d[2 + k]) * size * REAL(0.5);
      low[k] = clipped(middle - half, k ? bottom : right);
      high[k] = clipped(middle + half, k ? bottom : right);
    }
    const bool large = high[0] - low[0] + 1 >= least && high[1] - low[1] + 1 >= least;
    const int n = at * anchors + a;
    keys[n] = large ? descending_key(scores[(anchors + a) * plane + at]) : LEFT_OUT;
    for (int k = 0; k < 2; ++k) {
      boxes[4 * n + k] = low[k];
      boxes[4 * n + 2 + k] = high[k];
    }
  }
}

// The best `most` boxes, in order. keys: sorted; order: each key's index before sorting; count: the keys that are not LEFT_OUT.
extern "C" __global__ void proposal_best(int most, const KEY* keys, const int* order, const REAL* boxes, REAL* best, int* count) {
  LOOP(i, most) {
    const bool here = keys[i] != LEFT_OUT;
    if (i == 0 && !here) *count = 0;
    if (!here) continue;
    if (i + 1 == (unsigned)most || keys[i + 1] == LEFT_OUT) *count = i + 1;  // the thread of the last key before LEFT_OUT writes it
    for (int k = 0; k < 4; ++k) best[4 * i + k] = boxes[4 * order[i] + k];
  }
}

// rois (count, 5): 0 and the kept boxes. chosen: nullptr, or their scores. scores: the foreground scores (anchors, H, W).
extern "C" __global__ void proposal_rois(int most, const int* count, const int* kept, const REAL* best, const int* order,
                                         const REAL* scores, int anchors, int plane, REAL* rois, REAL* chosen) {
  LOOP(i, most) {
    if ((int)i >= *count) return;
    const int from = kept[i];
    rois[5 * i] = 0;
    for (int k = 0; k < 4; ++k) rois[5 * i + 1 + k] = best[4 * from + k];
    if (chosen) {
      const int n = order[from];  // row, column, anchor, in the order of proposal_boxes
      chosen[i] = scores[(anchors + n % anchors) * plane + n / anchors];
    }
  }
}
