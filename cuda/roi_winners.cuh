// The layers with one winner for each bin and channel: the kernels bins, pool, plan and backward. The including file
// defines what roi_slabs.cuh needs, and before:
//   constexpr int PIXELS                                              most pixels that a winner reads
// and after:
//   Bin bin_at(const Shape&, const Roi&, int ph, int pw)
//   Span cells_of(const Shape&, const Roi&, bool columns, int bin)    pixels of an axis that a bin's winners may touch
//   bool put_back(const Shape&, const Roi&, int ph, int pw, int at, REAL dy, int row, int end, REAL* sums, Gradient& g)
//     what a bin's dy adds to sums, which holds the map's rows [row, end), if anything; at: the winner, or -1
//
// In backward (see Slice) each warp processes its rois at its own speed. A lane has a pair of a roi's bins, (2i, pw) and
// (2i + 1, pw). Bins that may touch the same pixel take turns: in each turn first the upper, then the lower bins of its lanes.
// An axis has m turns: bins that are a multiple of m apart never touch the same pixel.
#pragma once
#include "roi_slabs.cuh"

constexpr int AHEAD = PIXELS == 1 ? 4 : 2;  // rois whose dy is read in advance
constexpr int MOST_WARPS = 8;               // of a block of backward

// What a bin's dy adds to the sums: a value for each cell. If two cells are the same, the first one's value counts.
// Pointers, because the compiler would compute the address of an index again in each turn.
struct Gradient {
  REAL* cell[PIXELS];
  REAL value[PIXELS];
};

__device__ inline Span cells_of(const Shape& s, const Roi& roi, bool columns, int bin);
__device__ inline bool put_back(const Shape& s, const Roi& roi, int ph, int pw, int at, REAL dy, int row, int end, REAL* sums,
                                Gradient& g);

__device__ inline Bin bin_at(const Shape& s, const Roi& roi, int ph, int pw);

// table: Bins (R, PH, PW), empty for a bad roi. bad: nullptr, or read_roi's flag.
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

// A roi's image (-1: bad, or without bins); the turns of pairs along h and of bins along w, powers of 2 whose exponents are the
// high and the low half; the rows that its winners may touch.
struct alignas(16) Plan {
  int image, turns, first_row, end_row;
};

// The least m for which bins i and i + m of an axis never touch the same pixel. all: the pixels that any bin may touch.
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

// The exponent of the least power of 2 that is at least n.
__device__ inline int exponent(int n) {
  int bits = 0;
  while (1 << bits < n) ++bits;
  return bits;
}

// made: a Plan (4 ints) for each roi.
extern "C" __global__ void plan(Shape s, const REAL* rois, int* made, int* bad) {
  LOOP(r, s.rois) {
    const Roi roi = read_roi(s, rois, r, bad);
    Plan plan = {-1, 0, 0, 0};
    if (roi.image >= 0) {
      Span rows, columns;
      plan.turns = exponent((turns(s, roi, false, s.pooled_h, rows) + 1) / 2) << 16;
      plan.turns |= exponent(turns(s, roi, true, s.pooled_w, columns));
      plan.first_row = rows.first, plan.end_row = rows.end;
      if (rows.end > rows.first && columns.end > columns.first) plan.image = roi.image;
    }
    ((Plan*)made)[r] = plan;
  }
}

__device__ inline void add(const Gradient& g) {
  REAL sum[PIXELS];
#pragma unroll
  for (int p = 0; p < PIXELS; ++p) sum[p] = *g.cell[p] + g.value[p];
#pragma unroll
  for (int p = PIXELS - 1; p >= 0; --p) *g.cell[p] = sum[p];
}

// A roi's turns, -1 if the block has none of its pixels; its corners; the winners and dy of a lane's pair of bins.
struct Step {
  int turns;
  Roi roi;
  int at[2];
  REAL dy[2];
};

// A block's part of the map: some rows of one plane, in shared memory in several copies. Each warp adds every warps-th roi, in
// order, to its copy. At the end the copies are added, in order. So each sum has one order, whatever the timing. Sums are REAL,
// as in the originals.
struct Slice {
  int plane, image, channel;
  int row, end, cells;  // the rows [row, end), and their pixels
  int warp, warps;      // of this thread, and the number in its block
  __device__ void clear(REAL* sums) const {
    BLOCK_LOOP(k, warps * cells) sums[k] = 0;
    __syncthreads();
  }
  // Writes the sums to dx (N, C, H, W).
  __device__ void write(const Shape& s, const REAL* sums, REAL* dx) const {
    __syncthreads();
    BLOCK_LOOP(k, cells) {
      REAL sum = 0;
      for (int w = 0; w < warps; ++w) sum += sums[w * cells + k];
      dx[(unsigned)plane * s.height * s.width + row * s.width + k] = sum;
    }
  }
};

// Of a block with tile_rows rows of a plane.
__device__ inline Slice slice_of(const Shape& s, int tile_rows) {
  const int tiles = (s.height + tile_rows - 1) / tile_rows, plane = blockIdx.x / tiles;
  const int row = (int)(blockIdx.x % tiles) * tile_rows, end = min(row + tile_rows, s.height);
  return {plane, plane / s.channels, plane % s.channels, row, end, (end - row) * s.width, (int)threadIdx.x / WARP,
          (int)blockDim.x / WARP};
}

// dx (N, C, H, W), completely. One block for each plane and tile_rows rows of it.
extern "C" __global__ void __launch_bounds__(MOST_WARPS * WARP)
backward(Shape s, const REAL* rois, const int* plans, int tile_rows, const int* at, const REAL* dy, REAL* dx) {
  __shared__ REAL sums[CELLS];
  const Slice part = slice_of(s, tile_rows);
  const int row = part.row, end = part.end, warps = part.warps, bins = s.pooled_h * s.pooled_w;
  const int pairs = (s.pooled_h + 1) / 2 * s.pooled_w;
  REAL* mine = sums + part.warp * part.cells;
  part.clear(sums);
  for (int first = 0; first < pairs; first += WARP) {
    const int lane = first + threadIdx.x % WARP, pair = lane / s.pooled_w, ph = 2 * pair, pw = lane % s.pooled_w;
    // past the last roi, use the last one, which saves a branch
    auto plan_of = [&](int r) { return ((const Plan*)plans)[min(r, s.rois - 1)]; };
    auto turns_of = [&](int r, const Plan& of) {
      return r < s.rois && of.image == part.image && of.first_row < end && of.end_row > row ? of.turns : -1;
    };
    auto load = [&](int r, int turns) {
      const REAL* corners = rois + 5LL * min(r, s.rois - 1);
      Step step = {turns, {0, corners[1], corners[2], corners[3], corners[4]}, {-1, -1}, {0, 0}};
      const unsigned i = ((unsigned)r * s.channels + part.channel) * bins + ph * s.pooled_w + pw;
      if (turns >= 0 && ph < s.pooled_h) step.at[0] = at[i], step.dy[0] = dy[i];
      if (turns >= 0 && ph + 1 < s.pooled_h) step.at[1] = at[i + s.pooled_w], step.dy[1] = dy[i + s.pooled_w];
      return step;
    };
    // the next AHEAD rois load while one is added, because at and dy are in global memory
    Step ahead[AHEAD];
    int later[AHEAD];  // turns of the rois after the next AHEAD
#pragma unroll
    for (int k = 0; k < AHEAD && s.rois; ++k) {
      const int r = part.warp + k * warps, next = r + AHEAD * warps;
      ahead[k] = load(r, turns_of(r, plan_of(r))), later[k] = turns_of(next, plan_of(next));
    }
    for (int base = part.warp; base < s.rois; base += AHEAD * warps) {
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const int r = base + k * warps, last = r + 2 * AHEAD * warps;
        const Step step = ahead[k];
        const Plan plan = plan_of(last);
        ahead[k] = load(r + AHEAD * warps, later[k]);
        if (step.turns >= 0) {  // the same for the whole warp
          const int high = step.turns >> 16, low = step.turns & 0xFFFF;
          const int turn = (pair & ((1 << high) - 1)) << low | (pw & ((1 << low) - 1));
          Gradient gradient[2];
          int turns[2];
#pragma unroll
          for (int b = 0; b < 2; ++b) {
            const bool any = put_back(s, step.roi, ph + b, pw, step.at[b], step.dy[b], row, end, mine, gradient[b]);
            turns[b] = any ? turn : -1;
          }
#pragma unroll 1
          for (int now = 0; now < 1 << (high + low); ++now) {
#pragma unroll
            for (int b = 0; b < 2; ++b) {
              if (turns[b] == now) add(gradient[b]);
              __syncwarp();
            }
          }
        }
        later[k] = turns_of(last, plan);  // not earlier, because the plan is still loading
      }
    }
  }
  part.write(s, sums, dx);
}
