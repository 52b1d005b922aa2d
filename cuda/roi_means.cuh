// Means of a grid of bilinear samples in each bin. See layers/roi/roi_align_mean.py. The including file defines:
//   Axis       how a roi lies along an axis; its member count: samples in a bin
//   axis_of    (Shape, Roi, columns, two numbers) -> Axis
//   fill       sets the weights of one bin along one axis, which are -1 before; returns the pixels that it reads
//
// A bin's mean is a weight for each row times a weight for each column of the map. `weights` puts them in a table, once for
// each roi; forward and backward read it. A weight is 0 or more; -1: no sample reads that row or column, so that a NaN there
// has no effect (0 * NaN is NaN).
#pragma once

// What a bin reads along an axis: pixels, in order, and their weights.
struct alignas(2 * sizeof(REAL)) Tap {
  REAL weight;
  int pixel;  // of a row: its first
};

struct alignas(16) Bin {
  const Tap *row_taps, *column_taps;  // the next ones are PH, and PW, further
  int image, rows, columns;           // how many taps
};

// A roi's part of the tables. REALs: row weights (PH, H), column weights (PW, W). Ints: image, first and end of the rows and of
// the columns read by any bin (5 numbers); the span of pixels of each bin, rows first; the span of bins of each pixel, likewise.
struct Table {
  REAL* weights;
  int* numbers;
  __device__ REAL* of(const Shape& s, bool columns, int bin) const {
    return weights + (columns ? (long long)s.pooled_h * s.height + (long long)bin * s.width : (long long)bin * s.height);
  }
  __device__ Span* pixels(const Shape& s, bool columns) const { return (Span*)(numbers + 6) + (columns ? s.pooled_h : 0); }
  __device__ Span* bins(const Shape& s, bool columns) const {
    return (Span*)(numbers + 6) + s.pooled_h + s.pooled_w + (columns ? s.height : 0);
  }
  __device__ Span* read(bool columns) const { return (Span*)(numbers + 2) + columns; }  // numbers[1] is unused
};

__device__ inline Table table_of(const Shape& s, const REAL* weights, const int* numbers, int r) {
  const long long reals = (long long)s.pooled_h * s.height + (long long)s.pooled_w * s.width;
  const long long ints = 6 + 2LL * (s.pooled_h + s.pooled_w + s.height + s.width);
  return {(REAL*)weights + r * reals, (int*)numbers + r * ints};
}

// A block a roi at a time. table, numbers: see Table.
extern "C" __global__ void weights(Shape s, const REAL* rois, int first, int second, REAL* table, int* numbers, int* bad) {
  const int height = s.height, width = s.width, pooled_h = s.pooled_h, pooled_w = s.pooled_w;
  for (int r = blockIdx.x; r < s.rois; r += gridDim.x) {
    const Roi mine = read_roi(s, rois, r, threadIdx.x ? nullptr : bad);
    const Table t = table_of(s, table, numbers, r);
    if (!threadIdx.x) t.numbers[0] = mine.image;
    if (mine.image < 0) continue;  // the same for the whole block
    const int reals = pooled_h * height + pooled_w * width;
    BLOCK_LOOP(i, reals) t.weights[i] = -1;
    __syncthreads();
    const Axis axis[2] = {axis_of(s, mine, false, first, second), axis_of(s, mine, true, first, second)};
    const REAL samples = axis[0].count * axis[1].count;
    for (int i = threadIdx.x; i < pooled_h + pooled_w; i += blockDim.x) {
      const bool columns = i >= pooled_h;
      const int bin = columns ? i - pooled_h : i;
      // the column weights take the divisor
      t.pixels(s, columns)[bin] = fill(axis[columns], bin, columns ? width : height,
                                       columns && samples > 1 ? samples : REAL(1), t.of(s, columns, bin));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < height + width; i += blockDim.x) {
      const bool columns = i >= height;
      const int pixel = columns ? i - height : i, bins = columns ? pooled_w : pooled_h;
      Span found = {0, 0};
      for (int bin = 0; bin < bins; ++bin) {
        const Span read = t.pixels(s, columns)[bin];
        if (pixel >= read.first && pixel < read.end) found = {found.end ? found.first : bin, bin + 1};
      }
      t.bins(s, columns)[pixel] = found;
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

// Counts the taps of a bin; lists them too unless `to` is nullptr.
__device__ inline int list_taps(Span read, const REAL* weights, int pixels, Tap* to, int stride) {
  int count = 0;
  for (int i = read.first; i < read.end; ++i) {
    if (weights[i] < 0) continue;
    if (to) to[count * stride] = {weights[i], i * pixels};
    ++count;
  }
  return count;
}

// From the tables: taps, of a roi those of the rows (H, PH), then of the columns (W, PW); made: (R, PH, PW) Bins.
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

constexpr int SIDE = 8;  // a group of threads: SIDE x SIDE

// dx (N, C, H, W), all of it; with more, added to its old values. See Slice of roi.cuh: in a group, thread (i, j) has the pixels
// (i + SIDE * m, j + SIDE * n). No pixel has two threads, so that no thread waits for another.
extern "C" __global__ void __launch_bounds__(512, 2)
backward(Shape s, const REAL* table, const int* numbers, int tile_rows, int more, const REAL* dy, REAL* dx) {
  __shared__ REAL sums[CELLS];
  const int height = s.height, width = s.width;
  const Slice of = slice_of(s, tile_rows, SIDE * SIDE);
  const int i = threadIdx.x / SIDE % SIDE, j = threadIdx.x % SIDE;
  REAL* mine = sums + of.group * of.cells - of.row * width;  // indexed by the map's own rows
  of.clear(sums);
  for (int r = of.group; r < s.rois; r += of.groups) {
    const Table t = table_of(s, table, numbers, r);
    if (t.numbers[0] != of.image) continue;
    const Span down = *t.read(false), across = *t.read(true);
    const Span *row_bins = t.bins(s, false), *column_bins = t.bins(s, true);
    const REAL *row_weights = t.of(s, false, 0), *column_weights = t.of(s, true, 0);
    const REAL* grid = dy + ((unsigned)r * s.channels + of.channel) * s.pooled_h * s.pooled_w;
    const int top = max(down.first, of.row), bottom = min(down.end, of.row + of.rows);
    for (int h = top + ((i - top) & (SIDE - 1)); h < bottom; h += SIDE)  // from top on, the rows with h % SIDE == i
      for (int w = across.first + ((j - across.first) & (SIDE - 1)); w < across.end; w += SIDE) {
        REAL sum = 0;
        const Span high = row_bins[h], wide = column_bins[w];
        for (int ph = high.first; ph < high.end; ++ph) {
          const REAL row_weight = row_weights[ph * height + h];
          if (row_weight < 0) continue;
          REAL line = 0;
          for (int pw = wide.first; pw < wide.end; ++pw) {
            const REAL weight = column_weights[pw * width + w];
            if (weight >= 0) line += weight * grid[ph * s.pooled_w + pw];
          }
          sum += row_weight * line;
        }
        mine[h * width + w] += sum;
      }
  }
  of.write(s, sums, more, dx);
}
