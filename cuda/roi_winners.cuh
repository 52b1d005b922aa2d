// The layers where each bin has one winner per channel: the kernels bins, pool, plan and backward. The file that includes this one
// defines what roi_slabs.cuh needs, and after:
//   Bin bin_at(const Shape&, const Roi&, int ph, int pw)
//   Span cells_of(const Shape&, const Roi&, bool columns, int bin)    pixels of an axis that a bin's winners may touch
//   void put_back(const Shape&, const REAL* rois, int r, int ph, int pw, int at, REAL dy, REAL* sums, int row, int rows)
//     adds a bin's dy to sums, which holds the map's rows [row, row + rows); at: the winner, not -1
//
// In backward (see Slice of roi.cuh) a thread has a bin of a roi. Bins that may touch the same pixel take turns: the roi's
// `turns` along an axis are the least m for which bins i and i + m never do.
#pragma once
#include "roi_slabs.cuh"

constexpr int AHEAD = 4;     // steps whose dy is read in advance
constexpr int SECTION = 64;  // steps whose phases are known at a time

__device__ inline Span cells_of(const Shape& s, const Roi& roi, bool columns, int bin);
__device__ inline void put_back(const Shape& s, const REAL* rois, int r, int ph, int pw, int at, REAL dy, REAL* sums, int row,
                                int rows);

__device__ inline Bin bin_at(const Shape& s, const Roi& roi, int ph, int pw);

// table: (R, PH, PW) Bins, those of a bad roi empty; bad: nullptr or where read_roi flags.
extern "C" __global__ void bins(Shape s, const REAL* rois, void* table, int* bad) {
  const int all = s.pooled_h * s.pooled_w;
  LOOP(i, (unsigned)s.rois * all) {
    const Roi roi = read_roi(s, rois, (int)(i / all), bad);
    const int bin = (int)(i % all);
    ((Bin*)table)[i] = roi.image < 0 ? Bin{} : bin_at(s, roi, bin / s.pooled_w, bin % s.pooled_w);
  }
}

// See pool_slabs.
extern "C" __global__ void __launch_bounds__(THREADS, STACK)
pool(Shape s, const void* table, const REAL* map, REAL* y, int* at) {
  pool_slabs(s, (const Bin*)table, map, y, at);
}

// Of a roi: its image (-1: bad, or without bins), turns along h (high half) and w (low half), the rows that its winners may touch.
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
    for (j = max(j, i + 1); j < bins && cells_of(s, roi, columns, j).first < mine.end; ++j) {}  // bins start in order
    most = max(most, j - i);
  }
  return most;
}

// made: (R, 4) ints, a Plan each.
extern "C" __global__ void plan(Shape s, const REAL* rois, int* made, int* bad) {
  LOOP(r, s.rois) {
    const Roi roi = read_roi(s, rois, r, bad);
    Plan plan = {-1, 0, 0, 0};
    if (roi.image >= 0) {
      Span rows, columns;
      plan.turns = turns(s, roi, false, s.pooled_h, rows) << 16;
      plan.turns |= turns(s, roi, true, s.pooled_w, columns);
      plan.first_row = rows.first, plan.end_row = rows.end;
      if (rows.end > rows.first && columns.end > columns.first) plan.image = roi.image;
    }
    ((Plan*)made)[r] = plan;
  }
}

// i % n, fast for small n.
__device__ inline int remainder_of(int i, int n) { return n == 1 ? 0 : n == 2 ? i & 1 : n == 3 ? i % 3 : i % n; }

// dx (N, C, H, W), all of it. One block a plane and tile_rows rows of it; groups of `threads` threads (a multiple of 32).
extern "C" __global__ void backward(Shape s, const REAL* rois, const int* plans, int tile_rows, int threads, const int* at,
                                    const REAL* dy, REAL* dx) {
  __shared__ REAL sums[CELLS];
  __shared__ int phases[SECTION];
  const Plan* plan = (const Plan*)plans;
  const Slice part = slice_of(s, tile_rows, threads);
  const int row = part.row, rows = part.rows, groups = part.groups, group = part.group, slot = threadIdx.x % threads;
  const int bins = s.pooled_h * s.pooled_w, chunks = (bins + threads - 1) / threads;
  const int slot_h = slot / s.pooled_w, slot_w = slot % s.pooled_w;
  const int steps = (s.rois + groups - 1) / groups * chunks;
  REAL* mine = sums + group * part.cells;
  part.clear(sums);

  // loads of the next AHEAD steps are under way while these are added: at and dy come from global memory
  int next_at[AHEAD], next_turns[AHEAD];
  REAL next_dy[AHEAD];
  auto load = [&](int step, int k) {
    const int r = (chunks == 1 ? step : step / chunks) * groups + group;
    const int bin = (chunks == 1 ? 0 : step % chunks * threads) + slot;
    next_at[k] = -1, next_turns[k] = 0, next_dy[k] = 0;
    if (step < steps && r < s.rois && bin < bins) {
      const Plan of = plan[r];
      if (of.image == part.image && of.first_row < row + rows && of.end_row > row) {
        const unsigned i = ((unsigned)r * s.channels + part.channel) * bins + bin;
        next_at[k] = at[i], next_dy[k] = dy[i], next_turns[k] = of.turns;
      }
    }
  };
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) load(k, k);
  for (int base = 0; base < steps; base += AHEAD) {
    if (base % SECTION == 0) {
      BLOCK_LOOP(i, SECTION) {
        const int r = (base + i) / chunks * groups;
        phases[i] = 0;
        for (int g = 0; g < groups && r + g < s.rois; ++g) {
          const Plan of = plan[r + g];
          if (of.image == part.image && of.first_row < row + rows && of.end_row > row)
            // of all groups, which meet at the same barriers
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
        turn = remainder_of(ph, high) * low + remainder_of(pw, low);  // equal turns: bins that never touch the same pixel
      }
      const int all = phases[step % SECTION];  // the same for every thread of the block
      for (int phase = 0; phase < all; ++phase) {
        if (turn == phase)
          put_back(s, rois, (chunks == 1 ? step : step / chunks) * groups + group, ph, pw, winner[k], value[k], mine, row, rows);
        __syncthreads();
      }
    }
    if ((base + AHEAD) % SECTION == 0) __syncthreads();  // before phases is overwritten
  }
  part.write(s, sums, false, dx);
}
