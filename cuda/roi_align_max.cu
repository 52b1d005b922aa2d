// Caffe's ROIAlign: maxima of bilinear samples at unit steps. See layers/roi/roi_align_max.py.
#include "roi.cuh"

struct Edges {
  REAL start, end;
};

struct alignas(16) Bin {
  REAL h, w;                 // its first sample
  int image, rows, columns;  // samples along each axis; 0 and 0: empty
};

constexpr int PIXELS = 4;

#include "roi_winners.cuh"

// The start and end of a bin along one axis, clipped to [0, size]. Its samples: start, start + 1, ... below end.
__device__ inline Edges edges_of(const Shape& s, const Roi& roi, bool columns, int bin) {
  const REAL first = (columns ? roi.x1 : roi.y1) * REAL(s.scale), last = (columns ? roi.x2 : roi.y2) * REAL(s.scale);
  const REAL size = REAL(columns ? s.width : s.height);
  const REAL length = (last - first + REAL(1)) / REAL(columns ? s.pooled_w : s.pooled_h);
  return {clip(REAL(bin) * length + first, size), clip(REAL(bin + 1) * length + first, size)};
}

// The number of samples, added and rounded one by one, as in pooled.
__device__ inline int samples(const Edges& edges) {
  int count = 0;
  for (REAL place = edges.start; place < edges.end; place += 1) ++count;
  return count;
}

__device__ inline Bin bin_at(const Shape& s, const Roi& roi, int ph, int pw) {
  const Edges rows = edges_of(s, roi, false, ph), columns = edges_of(s, roi, true, pw);
  if (!(rows.start < rows.end && columns.start < columns.end)) return {};
  return {rows.start, columns.start, roi.image, samples(rows), samples(columns)};
}

// The greatest samples, and in at the index i * (W + 1) + j of the first of them. 0 and -1 for an empty bin.
__device__ inline Pack pooled(const Shape& s, const Bin& bin, const Map& map, int* at) {
  const int height = s.height, width = s.width;
  Pack best = start_of(!bin.rows);
  REAL h = bin.h;
  for (int i = 0; i < bin.rows; ++i, h += 1) {
    const REAL low_h = floor(h), high_h = ceil(h), upper = 1 - h + low_h, lower = 1 - high_h + h;
    const int top = (int)low_h * width, bottom = (int)high_h * width;
    const bool inside = high_h < height;
    REAL w = bin.w;
    for (int j = 0; j < bin.columns; ++j, w += 1) {
      const REAL low_w = floor(w), high_w = ceil(w), left = 1 - w + low_w, right = 1 - high_w + w;
      const int a = (int)low_w, b = (int)high_w;
      const bool within = high_w < width;
      Pack value = {};  // a neighbour past the map adds 0
      value.add(left * lower, inside ? map[bottom + a] : Pack{});
      value.add(right * lower, inside && within ? map[bottom + b] : Pack{});
      value.add(left * upper, map[top + a]);
      value.add(right * upper, within ? map[top + b] : Pack{});
      take_greater(value, i * (width + 1) + j, best, at);
    }
  }
  return best;
}

// The pixels that the samples of a bin read along one axis.
__device__ inline Span cells_of(const Shape& s, const Roi& roi, bool columns, int bin) {
  const Edges edges = edges_of(s, roi, columns, bin);
  if (!(edges.start < edges.end)) return {0, 0};
  REAL last = edges.start;
  while (last + 1 < edges.end) last += 1;  // forward's places: added and rounded one by one
  return {(int)edges.start, min((int)ceil(last) + 1, columns ? s.width : s.height)};
}

// The pixels in [first, end) that a sample reads along an axis. Without a second pixel, both are the same.
struct Neighbours {
  int pixel[2];
  REAL weight[2];
};
__device__ inline Neighbours neighbours_of(REAL place, int first, int end) {
  const int low = (int)place;
  const REAL share = place - REAL(low);
  const int next = share > 0 && low + 1 < end ? low + 1 : low;
  if (low < first) return {{next, next}, {share, REAL(0)}};
  return {{low, next}, {share > 0 ? 1 - share : REAL(2), share}};  // forward adds a sample on a pixel twice
}

__device__ inline bool put_back(const Shape& s, const Roi& roi, int ph, int pw, int at, REAL dy, int row, int end, REAL* sums,
                                Gradient& g) {
  const bool any = at >= 0;
  REAL h = edges_of(s, roi, false, ph).start, w = edges_of(s, roi, true, pw).start;
  for (; at > s.width; at -= s.width + 1) h += 1;  // not h + at / (W + 1), which rounds differently
#pragma unroll 1  // few rounds
  for (; at > 0; --at) w += 1;
  const Neighbours down = neighbours_of(h, row, end), across = neighbours_of(w, 0, s.width);
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    g.cell[p] = sums + (down.pixel[p / 2] - row) * s.width + across.pixel[p % 2];
    g.value[p] = down.weight[p / 2] * dy * across.weight[p % 2];
  }
  return any && down.pixel[0] >= row && down.pixel[0] < end;
}
