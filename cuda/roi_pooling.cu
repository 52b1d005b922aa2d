// ROIPooling: maxima over bins. See layers/roi_pooling.py.
#include "roi.cuh"

struct Bin {
  int image;
  Span rows, columns;
};

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

__device__ inline Bin bin_at(const Pooling& p, int r, int ph, int pw) {
  const Roi roi = read_roi(p.s, p.rois, r, p.bad);
  if (roi.image < 0) return {0, {0, 0}, {0, 0}};
  return {roi.image, cells_of(p.s, roi, false, ph), cells_of(p.s, roi, true, pw)};
}

// The bin's maximum, and in at its first place h * W + w; 0 and -1 for an empty bin, -FLT_MAX and -1 without a finite number.
__device__ inline REAL pooled(const Pooling& p, const Bin& bin, const REAL* x, int& at) {
  const unsigned channels = p.s.channels, width = p.s.width;
  REAL best = LOWEST;
  if (bin.rows.end <= bin.rows.first || bin.columns.end <= bin.columns.first) return 0;
  for (int h = bin.rows.first; h < bin.rows.end; ++h) {
    const int line = h * (int)width;
    const REAL* pixel = x + ((unsigned)bin.image * p.s.height * width + line + bin.columns.first) * channels;
    for (int w = bin.columns.first; w < bin.columns.end; ++w, pixel += channels) {
      const REAL value = *pixel;
      if (value > best) best = value, at = line + w;
    }
  }
  return best;
}

__device__ inline void put_back(const Shape& s, const REAL*, int, int, int, int at, REAL dy, REAL* sums, int row, int rows) {
  const int cell = at - row * s.width;  // negative, or too large, in another tile of rows
  if (cell >= 0 && cell < rows * s.width) sums[cell] += dy;
}
