// For backward kernels whose blocks have a part of the map each: lists the rois that touch the part.
#pragma once
#include "common.cuh"

constexpr int SECTION = 512;  // rois listed at a time
constexpr int MOST_THREADS = 256;  // most threads of a block

// The rois [start, start + SECTION).
struct Hits {
  REAL number[SECTION];  // one for each roi, negative if the roi does not touch the part
  int list[SECTION], ends[MOST_THREADS];
};

// Lists the indices of the first `count` numbers that are not negative. Each thread has set those that BLOCK_LOOP assigns to
// it.
// Returns their count. Their order depends only on the sizes: thread after thread.
__device__ inline int list_hits(Hits& hits, int count) {
  const int thread = threadIdx.x;
  int mine = 0;
  BLOCK_LOOP(k, count) mine += hits.number[k] >= 0;
  hits.ends[thread] = mine;
  __syncthreads();
  for (int step = 1; step < (int)blockDim.x; step *= 2) {
    const int before = thread >= step ? hits.ends[thread - step] : 0;
    __syncthreads();
    hits.ends[thread] += before;
    __syncthreads();
  }
  int at = hits.ends[thread] - mine;
  BLOCK_LOOP(k, count) if (hits.number[k] >= 0) hits.list[at++] = k;
  __syncthreads();
  return hits.ends[blockDim.x - 1];
}
