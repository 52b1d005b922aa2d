// PSROIPooling: averages over position-sensitive bins. See layers/psroi_pooling.py.
#include "roi.cuh"

struct Bin {
  Span rows, columns;
  __device__ int area() const { return max(rows.end - rows.first, 1) * max(columns.end - columns.first, 1); }
};

#include "psroi.cuh"

// [floor, ceil) of each bin, clipped to the map, as spans (2, G, R), rows first; images (R,).
extern "C" __global__ void bins(int rois, int images, int channels, int height, int width, int group, double scale,
                                const REAL* roi, int* spans, int* image_of, int* bad) {
  const Shape s = {rois, images, channels, height, width, group, group, scale};
  LOOP(r, rois) {
    const Roi mine = read_roi(s, roi, r, bad);
    image_of[r] = mine.image;
    for (int columns = 0; columns < 2; ++columns) {
      const REAL first = round_half_away(columns ? mine.x1 : mine.y1) * REAL(scale);
      const REAL end = (round_half_away(columns ? mine.x2 : mine.y2) + 1) * REAL(scale);
      const REAL size = end - first, length = (size > REAL(0.1) ? size : REAL(0.1)) / REAL(group);
      for (int g = 0; g < group; ++g) {
        Span span = {0, 0};
        if (mine.image >= 0)
          span = {clip((int)floor(REAL(g) * length + first), columns ? width : height),
                  clip((int)ceil(REAL(g + 1) * length + first), columns ? width : height)};
        ((Span*)spans)[((long long)columns * group + g) * rois + r] = span;
      }
    }
  }
}

__device__ inline Bin bin_at(const Tables& t, int r, int gh, int gw) {
  const Span* spans = (const Span*)t.bins;
  return {spans[(long long)gh * t.s.rois + r], spans[(long long)(t.s.pooled_h + gw) * t.s.rois + r]};
}

__device__ inline REAL mean(const Shape& s, const Bin& bin, const REAL* plane) {
  double sum = 0;
  for (int h = bin.rows.first; h < bin.rows.end; ++h)
    for (int w = bin.columns.first; w < bin.columns.end; ++w) sum += plane[h * s.width + w];
  return (REAL)(sum / bin.area());
}

__device__ inline Span pixels(const Shape&, const Bin& bin, bool columns) { return columns ? bin.columns : bin.rows; }

__device__ inline void spread(const Shape&, const Bin& bin, int, int, REAL dy, REAL& sum) { sum += dy / REAL(bin.area()); }

extern "C" __global__ void pool(int rois, int images, int channels, int height, int width, int group, double scale,
                                const int* spans, const int* image_of, int planes, int staged, const REAL* x, REAL* y) {
  means({{rois, images, channels, height, width, group, group, scale}, image_of, spans, nullptr, 0}, planes, staged, x, y);
}

extern "C" __global__ void backward(int rois, int images, int channels, int height, int width, int group, double scale,
                                    const int* spans, const int* image_of, int tile_rows, const REAL* dy, REAL* dx) {
  gather_bins({{rois, images, channels, height, width, group, group, scale}, image_of, spans, nullptr, 0}, tile_rows, dy, dx);
}
