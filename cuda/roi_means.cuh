// Means of a grid of bilinear samples in each bin. See layers/roi/roi_align_mean.py. The including file defines:
//   Axis       a roi along an axis; its member count: samples in a bin
//   axis_of    (Shape, Roi, columns, two numbers) -> Axis
//   fill       sets the weights of one bin along one axis, initially -1; returns the pixels that it reads
//
// A bin's mean is a weight for each row times a weight for each column of the map. `weights` stores them in a table, once for
// each roi. forward and backward read the table. Weights are 0 or more. -1 means that no sample reads the row or column, so
// that a NaN there has no effect (0 * NaN is NaN).
#pragma once
#include "roi_hits.cuh"

constexpr int SIDE = 4;   // a thread of backward has a tile of SIDE x SIDE pixels,
constexpr int EACH = 2;   // in EACH channels
constexpr int TILES = 2;  // a block has TILES adjacent tiles,
constexpr int SHARES = 4;  // and SHARES warps for each tile, which divide the rois
// Blocks of backward on a multiprocessor at a time, without spilled registers.
constexpr int RESIDENT = sizeof(REAL) == 4 ? 3 : 1;

__device__ inline int tiles_of(int size) { return (size + SIDE - 1) / SIDE; }

// What a bin reads along an axis: pixels in order, and their weights.
struct alignas(2 * sizeof(REAL)) Tap {
  REAL weight;
  int pixel;  // for a row: its first pixel
};

struct alignas(16) Bin {
  const Tap *row_taps, *column_taps;  // the next taps are PH, or PW, further
  int image, rows, columns;           // numbers of taps
};

// A roi's part of the tables. REALs: row weights (PH, H), column weights (PW, W); H and W are rounded up to whole tiles. Ints:
// image; first and end of the rows and of the columns that any bin reads (5 numbers in all); the span of pixels of each bin,
// rows first; the span of bins that read each tile's rows, then its columns.
struct Table {
  REAL* weights;
  int* numbers;
  __device__ REAL* of(const Shape& s, bool columns, int bin) const {
    const long long height = tiles_of(s.height) * SIDE, width = tiles_of(s.width) * SIDE;
    return weights + (columns ? s.pooled_h * height + bin * width : bin * height);
  }
  __device__ Span* pixels(const Shape& s, bool columns) const { return (Span*)(numbers + 6) + (columns ? s.pooled_h : 0); }
  __device__ Span* bins(const Shape& s, bool columns) const {
    return (Span*)(numbers + 6) + s.pooled_h + s.pooled_w + (columns ? tiles_of(s.height) : 0);
  }
  __device__ Span* read(bool columns) const { return (Span*)(numbers + 2) + columns; }  // numbers[1] is unused
};

__device__ inline Table table_of(const Shape& s, const REAL* weights, const int* numbers, int r) {
  const int down = tiles_of(s.height), across = tiles_of(s.width);
  const long long reals = SIDE * ((long long)s.pooled_h * down + (long long)s.pooled_w * across);
  const long long ints = 6 + 2LL * (s.pooled_h + s.pooled_w + down + across);
  return {(REAL*)weights + r * reals, (int*)numbers + r * ints};
}

// One block for each roi in turn. table, numbers: see Table.
extern "C" __global__ void weights(Shape s, const REAL* rois, int first, int second, REAL* table, int* numbers, int* bad) {
  const int height = s.height, width = s.width, pooled_h = s.pooled_h, pooled_w = s.pooled_w;
  const int down = tiles_of(height), across = tiles_of(width), reals = SIDE * (pooled_h * down + pooled_w * across);
  for (int r = blockIdx.x; r < s.rois; r += gridDim.x) {
    const Roi mine = read_roi(s, rois, r, threadIdx.x ? nullptr : bad);
    const Table t = table_of(s, table, numbers, r);
    if (!threadIdx.x) t.numbers[0] = mine.image;
    if (mine.image < 0) continue;  // the same for the whole block
    BLOCK_LOOP(i, reals) t.weights[i] = -1;
    __syncthreads();
    const Axis axis[2] = {axis_of(s, mine, false, first, second), axis_of(s, mine, true, first, second)};
    const REAL samples = axis[0].count * axis[1].count;
    for (int i = threadIdx.x; i < pooled_h + pooled_w; i += blockDim.x) {
      const bool columns = i >= pooled_h;
      const int bin = columns ? i - pooled_h : i;
      // the column weights include the divisor
      t.pixels(s, columns)[bin] = fill(axis[columns], bin, columns ? width : height,
                                       columns && samples > 1 ? samples : REAL(1), t.of(s, columns, bin));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < down + across; i += blockDim.x) {
      const bool columns = i >= down;
      const int tile = columns ? i - down : i, bins = columns ? pooled_w : pooled_h;
      Span found = {0, 0};
      for (int bin = 0; bin < bins; ++bin) {
        const Span read = t.pixels(s, columns)[bin];
        if (read.first < (tile + 1) * SIDE && read.end > tile * SIDE) found = {found.end ? found.first : bin, bin + 1};
      }
      t.bins(s, columns)[tile] = found;
    }
    if (threadIdx.x < 2) {
      Span all = {0, 0};
      for (int bin = 0; bin < (threadIdx.x ? pooled_w : pooled_h); ++bin) {
        const Span read = t.pixels(s, threadIdx.x)[bin];
        if (read.end > read.first) all = {all.end ? min(all.first, read.first) : read.first, max(all.end, read.end)};
      }
      *t.read(threadIdx.x) = all;
    }
    __syncthreads();
  }
}

#include "roi_slabs.cuh"

// Counts the taps of a bin, and lists them unless `to` is nullptr.
__device__ inline int list_taps(Span read, const REAL* weights, int pixels, Tap* to, int stride) {
  int count = 0;
  for (int i = read.first; i < read.end; ++i) {
    if (weights[i] < 0) continue;
    if (to) to[count * stride] = {weights[i], i * pixels};
    ++count;
  }
  return count;
}

// From the tables. taps: for each roi those of the rows (H, PH), then of the columns (W, PW). made: Bins (R, PH, PW).
extern "C" __global__ void bins(Shape s, const REAL* table, const int* numbers, void* taps, void* made) {
  const int all = s.pooled_h * s.pooled_w;
  LOOP(i, (unsigned)s.rois * all) {
    const int r = (int)(i / all), bin = (int)(i % all), ph = bin / s.pooled_w, pw = bin % s.pooled_w;
    const Table t = table_of(s, table, numbers, r);
    Bin of = {};
    if (t.numbers[0] >= 0) {
      Tap* row = (Tap*)taps + (t.weights - table) + ph;
      Tap* column = (Tap*)taps + (t.of(s, true, 0) - table) + pw;
      of = {row, column, t.numbers[0],
            list_taps(t.pixels(s, false)[ph], t.of(s, false, ph), s.width, pw ? nullptr : row, s.pooled_h),
            list_taps(t.pixels(s, true)[pw], t.of(s, true, pw), 1, ph ? nullptr : column, s.pooled_w)};
    }
    ((Bin*)made)[i] = of;
  }
}

// The means of the bin's samples.
__device__ inline Pack pooled(const Shape& s, const Bin& bin, const Map& map, int*) {
  Pack sum = {};
  for (int i = 0; i < bin.rows; ++i) {
    const Tap row = bin.row_taps[i * s.pooled_h];
    Pack line = {};
#pragma unroll 2
    for (int j = 0; j < bin.columns; ++j) {
      const Tap column = bin.column_taps[j * s.pooled_w];
      line.add(column.weight, map[row.pixel + column.pixel]);
    }
    sum.add(row.weight, line);
  }
  return sum;
}

// y: (R, C, PH, PW). See pool_slabs.
extern "C" __global__ void __launch_bounds__(THREADS, STACK) pool(Shape s, const void* table, const REAL* map, REAL* y) {
  pool_slabs(s, (const Bin*)table, map, y, nullptr);
}

struct alignas(16) Weights {  // of a tile's rows or columns
  REAL of[SIDE];
};

// dx (N, C, H, W), completely, from dy (R, PH, PW, C); with more, added to the old values. A warp's threads have the same tile,
// in adjacent channels. Each of a tile's warps adds every SHARES-th roi of a section, in order. At the end their sums are added,
// in order. So each sum has one order, whatever the timing. Sums are REAL, as in the originals.
//
// A warp mostly waits for dy and the weights: several warps wait at a time.
extern "C" __global__ void __launch_bounds__(TILES * SHARES * WARP, RESIDENT)
backward(Shape s, const REAL* table, const int* numbers, int more, const REAL* dy, REAL* dx) {
  __shared__ Hits hits;
  __shared__ REAL given[EACH * SIDE * SIDE][TILES * WARP];  // one share's sums
  const int down = tiles_of(s.height), across = (tiles_of(s.width) + TILES - 1) / TILES;  // blocks that cover the map
  const int parts = (s.channels + WARP * EACH - 1) / (WARP * EACH);
  const int row = (int)(blockIdx.x % down) * SIDE, first = (int)(blockIdx.x / down % across) * TILES * SIDE;
  const int mine = threadIdx.x % (TILES * WARP), share = threadIdx.x / (TILES * WARP);  // mine: the same in each share
  const int column = first + mine / WARP * SIDE;
  const int channel = (int)(blockIdx.x / down / across % parts) * WARP * EACH + threadIdx.x % WARP;
  const int image = blockIdx.x / down / across / parts;
  const int height = tiles_of(s.height) * SIDE, width = tiles_of(s.width) * SIDE;  // rounded up, as for the weights
  int read[EACH];  // this thread's channels, or the last
#pragma unroll
  for (int e = 0; e < EACH; ++e) read[e] = min(channel + e * WARP, s.channels - 1);
  REAL sums[EACH][SIDE][SIDE] = {};
  for (int start = 0; start < s.rois; start += SECTION) {
    const int some = min(SECTION, s.rois - start);
    __syncthreads();  // until all have read the last section's list
    BLOCK_LOOP(k, some) {
      const Table t = table_of(s, table, numbers, start + k);
      const Span rows = *t.read(false), columns = *t.read(true);
      hits.number[k] = t.numbers[0] == image && rows.first < row + SIDE && rows.end > row &&
                       columns.first < first + TILES * SIDE && columns.end > first ? 0 : -1;
    }
    const int count = list_hits(hits, some);
    for (int hit = share; hit < count && column < s.width; hit += SHARES) {
      const int r = start + hits.list[hit];
      const Table t = table_of(s, table, numbers, r);
      const Span high = t.bins(s, false)[row / SIDE], wide = t.bins(s, true)[column / SIDE];
      if (wide.first == wide.end) continue;
      const REAL *rows = t.of(s, false, high.first) + row, *columns = t.of(s, true, wide.first) + column;
      const REAL* from = dy + (((unsigned)r * s.pooled_h + high.first) * s.pooled_w + wide.first) * s.channels;
      for (int ph = high.first; ph < high.end; ++ph, rows += height, from += s.pooled_w * s.channels) {
        const Weights by_row = *(const Weights*)rows;
        REAL line[EACH][SIDE] = {};  // before the rows' weights are applied
        for (int k = 0; k < wide.end - wide.first; ++k) {
          const Weights by_column = *(const Weights*)(columns + k * width);
#pragma unroll
          for (int e = 0; e < EACH; ++e) {
            const REAL value = from[k * s.channels + read[e]];
#pragma unroll
            for (int j = 0; j < SIDE; ++j)
              if (by_column.of[j] >= 0) line[e][j] = fma(by_column.of[j], value, line[e][j]);
          }
        }
#pragma unroll
        for (int i = 0; i < SIDE; ++i)
          if (by_row.of[i] >= 0)
#pragma unroll
            for (int e = 0; e < EACH; ++e)
#pragma unroll
              for (int j = 0; j < SIDE; ++j) sums[e][i][j] = fma(by_row.of[i], line[e][j], sums[e][i][j]);
      }
    }
  }
  for (int other = 1; other < SHARES; ++other) {
    __syncthreads();  // until the last share's sums are added
#pragma unroll
    for (int k = 0; k < EACH * SIDE * SIDE; ++k)
      if (share == other) given[k][mine] = sums[k / (SIDE * SIDE)][k / SIDE % SIDE][k % SIDE];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH * SIDE * SIDE; ++k)
      if (!share) sums[k / (SIDE * SIDE)][k / SIDE % SIDE][k % SIDE] += given[k][mine];
  }
  if (share) return;
#pragma unroll
  for (int e = 0; e < EACH; ++e)
#pragma unroll
    for (int i = 0; i < SIDE; ++i)
#pragma unroll
      for (int j = 0; j < SIDE; ++j)
        if (channel + e * WARP < s.channels && row + i < s.height && column + j < s.width) {
          REAL* to = dx + ((((unsigned)image * s.channels + channel + e * WARP) * s.height + row + i) * s.width + column + j);
          *to = more ? *to + sums[e][i][j] : sums[e][i][j];
        }
}
