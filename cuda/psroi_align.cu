// PSROIAlign: averages of bilinear samples in position-sensitive bins. See layers/psroi_align.py.
#include "roi.cuh"

// Where a bin starts and ends along one axis, clipped to [0, size - 1]; its samples: start + 1, 2, ... steps, below end.
struct Edges {
  REAL start, end;
};

struct Bin {
  Edges rows, columns;
  REAL row_step, column_step;
  int samples;
};

#include "psroi.cuh"

// edges (2, G, R), rows first, an Edges each; steps (2, R); images (R,).
extern "C" __global__ void bins(int rois, int images, int channels, int height, int width, int group, int samples, double scale,
                                const REAL* roi, REAL* edges, REAL* steps, int* image_of, int* bad) {
  const Shape s = {rois, images, channels, height, width, group, group, scale};
  LOOP(r, rois) {
    const Roi mine = read_roi(s, roi, r, bad);
    image_of[r] = mine.image;
    for (int columns = 0; columns < 2; ++columns) {
      const REAL first = (columns ? mine.x1 : mine.y1) * REAL(scale);
      const REAL end = ((columns ? mine.x2 : mine.y2) + 1) * REAL(scale);
      const REAL size = end - first, length = (size > REAL(0.1) ? size : REAL(0.1)) / REAL(group);
      const REAL most = REAL(max((columns ? width : height) - 1, 0));
      for (int g = 0; g < group; ++g) {
        Edges made = {0, 0};
        if (mine.image >= 0) made = {clip(REAL(g) * length + first, most), clip(REAL(g + 1) * length + first, most)};
        ((Edges*)edges)[((long long)columns * group + g) * rois + r] = made;
      }
      steps[(long long)columns * rois + r] = mine.image < 0 ? REAL(1) : length / REAL(samples + 1);
    }
  }
}

__device__ inline Bin bin_at(const Tables& t, int r, int gh, int gw) {
  const Edges* edges = (const Edges*)t.bins;
  return {edges[(long long)gh * t.s.rois + r], edges[(long long)(t.s.pooled_h + gw) * t.s.rois + r], t.steps[r],
          t.steps[(long long)t.s.rois + r], t.samples};
}

__device__ inline REAL mean(const Shape& s, const Bin& bin, const REAL* plane) {
  const REAL divisor = REAL((long long)bin.samples * bin.samples);
  REAL sum = 0;
  if (!s.height || !s.width) return 0;
  for (int i = 1; i <= bin.samples; ++i) {
    const REAL h = bin.rows.start + REAL(i) * bin.row_step;
    if (!(h < bin.rows.end)) break;
    const int top = (int)h, bottom = min(top + 1, s.height - 1);
    const REAL lower = h - REAL(top), upper = 1 - lower;
    for (int j = 1; j <= bin.samples; ++j) {
      const REAL w = bin.columns.start + REAL(j) * bin.column_step;
      if (!(w < bin.columns.end)) break;
      const int left = (int)w, right = min(left + 1, s.width - 1);
      const REAL east = w - REAL(left), west = 1 - east;
      sum += upper * west * plane[top * s.width + left] + upper * east * plane[top * s.width + right] +
             lower * west * plane[bottom * s.width + left] + lower * east * plane[bottom * s.width + right];
    }
  }
  return sum / divisor;
}

// All samples lie in [start, end), and end is on the map: the pixels from start's to the one after end's.
__device__ inline Span pixels(const Shape& s, const Bin& bin, bool columns) {
  const Edges& edges = columns ? bin.columns : bin.rows;
  if (!(edges.start < edges.end)) return {0, 0};
  return {(int)edges.start, min((int)ceil(edges.end) + 1, columns ? s.width : s.height)};
}

// The weight of a pixel in the sum of the samples along an axis, -1 where no sample reads it.
__device__ inline REAL weight_of(const Edges& edges, REAL step, int samples, int size, int pixel) {
  REAL weight = -1;
  for (int i = 1; i <= samples; ++i) {
    const REAL place = edges.start + REAL(i) * step;
    if (!(place < edges.end)) break;
    const int low = (int)place, high = min(low + 1, size - 1);
    const REAL share = place - REAL(low);
    if (pixel == low) weight = (weight < 0 ? REAL(0) : weight) + (1 - share);
    if (pixel == high) weight = (weight < 0 ? REAL(0) : weight) + share;
  }
  return weight;
}

__device__ inline void spread(const Shape& s, const Bin& bin, int h, int w, REAL dy, REAL& sum) {
  const REAL row = weight_of(bin.rows, bin.row_step, bin.samples, s.height, h);
  const REAL column = weight_of(bin.columns, bin.column_step, bin.samples, s.width, w);
  if (row >= 0 && column >= 0) sum += row * column / REAL((long long)bin.samples * bin.samples) * dy;
}

extern "C" __global__ void pool(int rois, int images, int channels, int height, int width, int group, int samples,
                                const REAL* edges, const REAL* steps, const int* image_of, int planes, int staged, const REAL* x,
                                REAL* y) {
  means({{rois, images, channels, height, width, group, group, 1}, image_of, edges, steps, samples}, planes, staged, x, y);
}

extern "C" __global__ void backward(int rois, int images, int channels, int height, int width, int group, int samples,
                                    const REAL* edges, const REAL* steps, const int* image_of, int tile_rows, const REAL* dy,
                                    REAL* dx) {
  gather_bins({{rois, images, channels, height, width, group, group, 1}, image_of, edges, steps, samples}, tile_rows, dy, dx);
}
