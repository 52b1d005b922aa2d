// Non-maximum suppression of sorted boxes, SLAB at a time. See proposal.py. layers/proposal/nms.py has the definition.
#include "sort.cuh"

constexpr int SLAB = 2048;        // proposal.py's SLAB
constexpr int WORDS = SLAB / 64;  // of 64 bits, one for each box of a slab
constexpr int SCAN_THREADS = 256;

typedef unsigned long long WORD;

struct Box {
  REAL x1, y1, x2, y2;
};

__device__ __forceinline__ Box read_box(const REAL* boxes, int i) {
  return {boxes[4 * i], boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3]};
}

__device__ __forceinline__ REAL area(const Box& a) { return (a.x2 - a.x1 + 1) * (a.y2 - a.y1 + 1); }

// Whether two boxes with these areas overlap by more than threshold. With a NaN an area is NaN, and the boxes do not clash.
__device__ __forceinline__ bool clash(const Box& a, REAL area_a, const Box& b, REAL area_b, REAL threshold) {
  const REAL width = max(min(a.x2, b.x2) - max(a.x1, b.x1) + 1, REAL(0));
  const REAL height = max(min(a.y2, b.y2) - max(a.y1, b.y1) + 1, REAL(0));
  const REAL shared = width * height;
  return shared / (area_a + area_b - shared) > threshold;
}

// state: the number of boxes kept so far, and that before the current slab. removed: one flag for each of `most` boxes.
extern "C" __global__ void nms_start(int most, int* state, unsigned char* removed) {
  LOOP(i, most) {
    removed[i] = 0;
    if (i < 2) state[i] = 0;
  }
  if (most < 2 && blockIdx.x == 0 && threadIdx.x < 2) state[threadIdx.x] = 0;
}

// mask (SLAB, WORDS): bit j of word c of row r is 1 if boxes start + r and start + 64 c + j clash, and the second is later.
// One block of 64 threads for each 64 columns (x) and 64 rows (y) from the diagonal on. count: the number of boxes (4 numbers
// each).
extern "C" __global__ void nms_mask(const int* count, int start, const REAL* boxes, REAL threshold, int limit, const int* state,
                                    WORD* mask) {
  __shared__ Box others[64];
  __shared__ REAL areas[64];
  const int column = blockIdx.x, row = blockIdx.y, end = min(*count, start + SLAB);
  if (column < row || (limit && state[0] >= limit)) return;  // before any barrier; the same for the whole block
  const int first = start + 64 * column, mine = start + 64 * row + threadIdx.x;
  if (first >= end) return;
  if (first + (int)threadIdx.x < end) {
    others[threadIdx.x] = read_box(boxes, first + threadIdx.x);
    areas[threadIdx.x] = area(others[threadIdx.x]);
  }
  __syncthreads();
  if (mine >= end) return;
  const Box box = read_box(boxes, mine);
  const REAL own = area(box);
  WORD bits = 0;
  for (int j = column == row ? threadIdx.x + 1 : 0; j < min(64, end - first); ++j)  // on the diagonal, only later boxes
    if (clash(box, own, others[j], areas[j], threshold)) bits |= WORD(1) << j;
  mask[(mine - start) * WORDS + column] = bits;
}

// One block processes a slab's boxes in order. It keeps each box that is not removed, and removes the boxes that clash with it.
// kept: the indices of the kept boxes; this slab's are appended.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    nms_scan(const int* count, int start, const unsigned char* removed, const WORD* mask, int limit, int* state, int* kept) {
  __shared__ WORD diagonal[SLAB], alive[WORDS], chosen[WORDS];
  __shared__ unsigned char open[SLAB];
  __shared__ int before[WORDS + 1];  // number of boxes kept before each word, starting at state[0]
  const int thread = threadIdx.x, used = min(*count - start, SLAB), so_far = state[0];
  for (int i = thread; i < SLAB; i += SCAN_THREADS) {
    open[i] = i < used && !removed[start + i];
    diagonal[i] = i < used ? mask[i * WORDS + i / 64] : 0;
  }
  if (thread == 0) before[0] = so_far;
  __syncthreads();
  if (thread < WORDS) {
    WORD word = 0;
    for (int j = 0; j < 64; ++j)
      if (open[64 * thread + j]) word |= WORD(1) << j;
    alive[thread] = word;
  }
  for (int w = 0; w < WORDS; ++w) {
    __syncthreads();
    if (thread == 0) {
      WORD left = alive[w], found = 0;
      int total = before[w];
      while (left && !(limit && total >= limit)) {  // one thread, through at most 64 remaining boxes
        const int j = __ffsll((long long)left) - 1;
        found |= WORD(1) << j;
        left &= ~(diagonal[64 * w + j] | WORD(1) << j);  // removes those that clash, and j itself
        ++total;
      }
      chosen[w] = found;
      before[w + 1] = total;
    }
    __syncthreads();
    const int word = w + 1 + thread % WORDS;  // 8 threads for each later word
    if (word < WORDS && 64 * word < used) {
      WORD gone = 0;
      for (int j = thread / WORDS; j < 64; j += SCAN_THREADS / WORDS)
        if (chosen[w] >> j & 1) gone |= mask[(64 * w + j) * WORDS + word];
      if (gone) atomicAnd(&alive[word], ~gone);  // bits are only cleared, so the order of the threads does not matter
    }
  }
  for (int i = thread; i < used; i += SCAN_THREADS) {
    const WORD word = chosen[i / 64], bit = WORD(1) << i % 64;
    // the number of chosen bits before its own gives its place
    if (word & bit) kept[before[i / 64] + __popcll(word & (bit - 1))] = start + i;
  }
  if (thread == 0) {
    state[0] = before[WORDS];
    state[1] = so_far;
  }
}

// One thread for each box from start on: removes it if it clashes with a box kept in the previous slab.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    nms_remove(const int* count, int start, const REAL* boxes, REAL threshold, int limit, const int* state, const int* kept,
               unsigned char* removed) {
  __shared__ Box best[SCAN_THREADS];
  __shared__ REAL areas[SCAN_THREADS];
  const int mine = start + blockIdx.x * SCAN_THREADS + threadIdx.x, last = state[0];
  if (limit && last >= limit) return;
  const bool here = mine < *count;
  const Box box = here ? read_box(boxes, mine) : Box{0, 0, 0, 0};
  const REAL own = area(box);
  bool gone = here && removed[mine];
  for (int from = state[1]; from < last; from += SCAN_THREADS) {
    const int some = min(last - from, SCAN_THREADS);
    __syncthreads();
    if ((int)threadIdx.x < some) {
      best[threadIdx.x] = read_box(boxes, kept[from + threadIdx.x]);
      areas[threadIdx.x] = area(best[threadIdx.x]);
    }
    __syncthreads();
    // No thread leaves the outer loop early, because all must reach its barriers.
    for (int j = 0; j < some && here && !gone; ++j) gone = clash(best[j], areas[j], box, own, threshold);
  }
  if (gone) removed[mine] = 1;
}

// dets (count, 5): boxes and scores.
extern "C" __global__ void nms_keys(int count, const REAL* dets, KEY* keys) {
  LOOP(i, count) keys[i] = descending_key(dets[5 * i + 4]);
}

// boxes (count, 4): the boxes of dets, in order.
extern "C" __global__ void nms_ranked(int count, const REAL* dets, const int* order, REAL* boxes) {
  LOOP(i, count)
  for (int k = 0; k < 4; ++k) boxes[4 * i + k] = dets[5 * order[i] + k];
}

// found: the indices in dets of the *kept_count kept boxes, then -1; `most` numbers in all.
extern "C" __global__ void nms_found(int most, const int* kept_count, const int* kept, const int* order, int* found) {
  LOOP(i, most) found[i] = (int)i < *kept_count ? order[kept[i]] : -1;
}
