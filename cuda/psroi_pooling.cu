// PSROIPooling: averages over position-sensitive bins. See layers/psroi_pooling.py.
#include "roi.cuh"

typedef Span Extent;  // [floor, ceil), clipped to the map

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr int RESIDENT = sizeof(REAL) == 4 ? 5 : 4;
#else
constexpr int RESIDENT = 4;  // a multiprocessor of sm_75 has 1024 threads
#endif

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

__device__ inline Span pixels(const Shape&, const Bin& bin, bool columns) { return columns ? bin.columns : bin.rows; }

__device__ inline void put_back(const Shape&, const Bin& bin, int, int, REAL dy, REAL& sum) { sum += dy / REAL(area(bin)); }
