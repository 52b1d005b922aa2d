// Backward of the layers where each bin has one winner per channel: the kernels plan and backward. The file that includes this
// one defines before:
//   Span cells_of(const Shape&, const Roi&, bool columns, int bin)    pixels of an axis that a bin's winners may touch
//   void spread(const Shape&, const REAL* rois, int r, int ph, int pw, int at, REAL dy, REAL* sums, int row, int rows)
//     adds a bin's dy to sums, which holds the map's rows [row, row + rows); at: the winner, not -1
//
// A block has one plane (image, channel) of the map, or some rows of it, in shared memory, a few times: each of its groups of
// threads adds up every groups-th roi, in order, in a copy of its own, and the copies are added in order at the end. Within a
// roi a thread has a bin. Bins that may touch the same pixel take turns: the roi's `turns` along an axis are the least m for
// which bins i and i + m never do. So every sum has one order, whatever the threads' timing. Sums are REAL, as the original's.
#pragma once
#include "roi.cuh"

constexpr int CELLS = 44 * 1024 / (int)sizeof(REAL);  // of all copies in a block
constexpr int AHEAD = 4;                              // steps whose dy is on its way
constexpr int SECTION = 64;                           // steps whose phases are known at a time

// Of a roi: its image (-1: bad, or without bins), turns along h (high half) and w (low half), the rows that it may touch.
struct alignas(16) Plan {
  int image, turns, first_row, end_row;
};

__device__ inline int turns(const Shape& s, const Roi& roi, bool columns, int bins, Span& all) {
  int most = 1;
  all = {0, 0};
  for (int i = 0, j = 0; i < bins; ++i) {
    const Span mine = cells_of(s, roi, columns, i);
    if (mine.end <= mine.first) continue;
    all = {all.end > all.first ? min(all.first, mine.first) : mine.first, max(all.end, mine.end)};
    for (j = max(j, i + 1); j < bins && cells_of(s, roi, columns, j).first < mine.end; ++j) {}
    most = max(most, j - i);
  }
  return most;
}

__device__ inline void make_plan(const Shape& s, const REAL* rois, Plan* plan, int* bad) {
  LOOP(r, s.rois) {
    const Roi roi = read_roi(s, rois, r, bad);
    Plan made = {-1, 0, 0, 0};
    if (roi.image >= 0) {
      Span rows, columns;
      made.turns = turns(s, roi, false, s.pooled_h, rows) << 16;
      made.turns |= turns(s, roi, true, s.pooled_w, columns);
      made.first_row = rows.first, made.end_row = rows.end;
      if (rows.end > rows.first && columns.end > columns.first) made.image = roi.image;
    }
    plan[r] = made;
  }
}

// i % n, fast for the usual n.
__device__ inline int remainder_of(int i, int n) { return n == 1 ? 0 : n == 2 ? i & 1 : n == 3 ? i % 3 : i % n; }

// dx (N, C, H, W), all of it. One block a plane and tile_rows rows of it; groups of `threads` threads (a multiple of 32).
__device__ inline void gather_winners(const Shape& s, const REAL* rois, const Plan* plan, int tile_rows, int threads,
                                      const int* at, const REAL* dy, REAL* dx) {
  __shared__ REAL sums[CELLS];
  __shared__ int phases[SECTION];
  const int tiles = (s.height + tile_rows - 1) / tile_rows, plane = blockIdx.x / tiles;
  const int image = plane / s.channels, channel = plane % s.channels;
  const int row = (int)(blockIdx.x % tiles) * tile_rows, rows = min(tile_rows, s.height - row), cells = rows * s.width;
  const int groups = blockDim.x / threads, group = threadIdx.x / threads, slot = threadIdx.x % threads;
  const int bins = s.pooled_h * s.pooled_w, chunks = (bins + threads - 1) / threads;
  const int slot_h = slot / s.pooled_w, slot_w = slot % s.pooled_w;
  const int steps = (s.rois + groups - 1) / groups * chunks;
  REAL* mine = sums + group * cells;
  for (int i = threadIdx.x; i < groups * cells; i += blockDim.x) sums[i] = 0;
  __syncthreads();

  int next_at[AHEAD], next_turns[AHEAD];
  REAL next_dy[AHEAD];
  auto load = [&](int step, int k) {
    const int r = (chunks == 1 ? step : step / chunks) * groups + group;
    const int bin = (chunks == 1 ? 0 : step % chunks * threads) + slot;
    next_at[k] = -1, next_turns[k] = 0, next_dy[k] = 0;
    if (step < steps && r < s.rois && bin < bins) {
      const Plan of = plan[r];
      if (of.image == image && of.first_row < row + rows && of.end_row > row) {
        const unsigned i = ((unsigned)r * s.channels + channel) * bins + bin;
        next_at[k] = at[i], next_dy[k] = dy[i], next_turns[k] = of.turns;
      }
    }
  };
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) load(k, k);
  for (int base = 0; base < steps; base += AHEAD) {
    if (base % SECTION == 0) {
      for (int i = threadIdx.x; i < SECTION; i += blockDim.x) {
        const int r = (base + i) / chunks * groups;
        phases[i] = 0;
        for (int g = 0; g < groups && r + g < s.rois; ++g) {
          const Plan of = plan[r + g];
          if (of.image == image && of.first_row < row + rows && of.end_row > row)
            phases[i] = max(phases[i], (of.turns >> 16) * (of.turns & 0xFFFF));
        }
      }
      __syncthreads();
    }
    int winner[AHEAD], turns[AHEAD];
    REAL value[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) winner[k] = next_at[k], turns[k] = next_turns[k], value[k] = next_dy[k];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) load(base + AHEAD + k, k);
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int step = base + k, bin = (chunks == 1 ? 0 : step % chunks * threads) + slot;
      const int ph = chunks == 1 ? slot_h : bin / s.pooled_w, pw = chunks == 1 ? slot_w : bin % s.pooled_w;
      int turn = -1;
      if (winner[k] >= 0) {
        const int high = turns[k] >> 16, low = turns[k] & 0xFFFF;
        turn = remainder_of(ph, high) * low + remainder_of(pw, low);
      }
      const int all = phases[step % SECTION];  // the same for every thread of the block
      for (int phase = 0; phase < all; ++phase) {
        if (turn == phase)
          spread(s, rois, (chunks == 1 ? step : step / chunks) * groups + group, ph, pw, winner[k], value[k], mine, row, rows);
        __syncthreads();
      }
    }
    if ((base + AHEAD) % SECTION == 0) __syncthreads();
  }
  for (int i = threadIdx.x; i < cells; i += blockDim.x) {
    REAL sum = 0;
    for (int g = 0; g < groups; ++g) sum += sums[g * cells + i];
    dx[(unsigned)plane * s.height * s.width + row * s.width + i] = sum;
  }
}

// made: (R, 4) ints, a Plan each.
extern "C" __global__ void plan(int rois, int images, int channels, int height, int width, int pooled_h, int pooled_w,
                                double scale, const REAL* roi, int* made, int* bad) {
  make_plan({rois, images, channels, height, width, pooled_h, pooled_w, scale}, roi, (Plan*)made, bad);
}

extern "C" __global__ void backward(int rois, int images, int channels, int height, int width, int pooled_h, int pooled_w,
                                    double scale, const REAL* roi, const int* plan, int tile_rows, int threads,
                                    const int* at, const REAL* dy, REAL* dx) {
  gather_winners({rois, images, channels, height, width, pooled_h, pooled_w, scale}, roi, (const Plan*)plan, tile_rows,
                 threads, at, dy, dx);
}
