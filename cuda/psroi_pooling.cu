// PSROIPooling: averages over position-sensitive bins. See layers/roi/psroi_pooling.py.
#include "roi.cuh"

typedef Span Extent;  // [floor, ceil), clipped to the map

#include "psroi.cuh"

__device__ inline REAL corner(REAL v) { return round_half_away(v); }

__device__ inline Extent extent(REAL start, REAL end, int size) {
  return {clip((int)floor(start), size), clip((int)ceil(end), size)};
}

__device__ inline int area(const Bin& bin) {
  return max(bin.rows.end - bin.rows.first, 1) * max(bin.columns.end - bin.columns.first, 1);
}

__device__ inline REAL mean(const Shape& s, const Bin& bin, const REAL* plane) {
  double sum = 0;
  for (int h = bin.rows.first; h < bin.rows.end; ++h)
    for (int w = bin.columns.first; w < bin.columns.end; ++w) sum += plane[h * s.width + w];
  return (REAL)(sum / area(bin));
}

// The number of the bin's rows.
__device__ inline REAL row_part(const Shape&, const Bin& bin, int h) {
  return h >= bin.rows.first && h < bin.rows.end ? REAL(bin.rows.end - bin.rows.first) : REAL(-1);
}

__device__ inline void put_back(const Shape&, const Bin& bin, Span across, REAL row, REAL dy, REAL* sums, int stride) {
  constexpr int BATCH = 4;  // sums that are read before one is written
  const REAL each = dy / REAL((int)row * max(bin.columns.end - bin.columns.first, 1));
  const int end = min(bin.columns.end, across.end);
  for (int w = max(bin.columns.first, across.first); w < end; w += BATCH) {
    REAL sum[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
      if (w + k < end) sum[k] = sums[(w + k) * stride];
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
      if (w + k < end) sums[(w + k) * stride] = sum[k] + each;
  }
}
