// Reads whole labels, as layers/loss/loss.py does.
#pragma once

#include "common.cuh"

enum { IGNORED = -1, WRONG = -2 };

// The class of label i of count, or IGNORED, or WRONG. *wrong becomes count - i for the first wrong label.
__device__ __forceinline__ int read_label(const REAL* labels, unsigned i, int count, int classes, int ignores, int ignore, int* wrong) {
  const REAL label = labels[i];
  if (ignores && label == ignore) return IGNORED;
  if (label >= 0 && label < classes && label == floor(label)) return (int)label;
  if (wrong) atomicMax(wrong, count - (int)i);
  return WRONG;
}
