// ROIPooling: maxima over bins. See layers/roi/roi_pooling.py.
#include "roi.cuh"

struct alignas(16) Bin {
  int image, first, rows, columns;  // first: the pixel h * W + w; 0 rows and columns: empty
};

constexpr int PIXELS = 1;

#include "roi_winners.cuh"

// The pixels of a bin along one axis: [floor, ceil), clipped to the map.
__device__ inline Span cells_of(const Shape& s, const Roi& roi, bool columns, int bin) {
  const int first = (int)round_half_away((columns ? roi.x1 : roi.y1) * REAL(s.scale));
  const int last = (int)round_half_away((columns ? roi.x2 : roi.y2) * REAL(s.scale));
  const int size = columns ? s.width : s.height;
  const REAL length = REAL(max(last - first + 1, 1)) / REAL(columns ? s.pooled_w : s.pooled_h);
  const int start = (int)floor(REAL(bin) * length) + first, end = (int)ceil(REAL(bin + 1) * length) + first;
  return {clip(start, size), clip(end, size)};
}

__device__ inline Bin bin_at(const Shape& s, const Roi& roi, int ph, int pw) {
  const Span rows = cells_of(s, roi, false, ph), columns = cells_of(s, roi, true, pw);
  if (rows.end <= rows.first || columns.end <= columns.first) return {};
  return {roi.image, rows.first * s.width + columns.first, rows.end - rows.first, columns.end - columns.first};
}

// The bin's maxima, and in at their first indices h * W + w. 0 and -1 for an empty bin, -FLT_MAX and -1 without a finite
// number.
__device__ inline Pack pooled(const Shape& s, const Bin& bin, const Map& map, int* at) {
  Pack best = start_of(!bin.rows);
  const int width = s.width, end = bin.first + bin.rows * width;
  for (int line = bin.first; line < end; line += width)
#pragma unroll 2
    for (int pixel = line; pixel < line + bin.columns; ++pixel) take_greater(map[pixel], pixel, best, at);
  return best;
}

__device__ inline bool put_back(const Shape& s, const Roi&, int, int, int at, REAL dy, int row, int end, REAL* sums, Gradient& g) {
  const bool any = at >= row * s.width && at < end * s.width;  // false if it lies in another tile of rows
  g = {{any ? sums + (at - row * s.width) : sums}, {dy}};
  return any;
}
