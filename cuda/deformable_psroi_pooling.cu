// DeformablePSROIPooling: averages of bilinear samples in moved position-sensitive bins. See layers/roi/deformable_psroi_pooling.py.
#include "roi.cuh"

// A bin of one class along an axis: the first sample, the distance between samples, and the roi's extent.
struct Axis {
  REAL start, step, extent;
};

struct Bin {
  Axis rows, columns;
};

// The image that a bin reads (-1 for a bad roi), and its number of samples, at least 1.
struct Count {
  int image, samples;
};

// The two pixels of a sample, and the weight of the second one. used: whether the sample is on the map.
struct Sample {
  bool used;
  int low, high;
  REAL share;
};

__device__ inline Axis axis_of(const Shape& s, REAL first, REAL last, int bin, int bins, int samples, REAL move) {
  const REAL start = round_half_away(first) * REAL(s.scale) - REAL(0.5);
  const REAL end = (round_half_away(last) + 1) * REAL(s.scale) - REAL(0.5);
  const REAL extent = end - start > REAL(0.1) ? end - start : REAL(0.1), length = extent / REAL(bins);
  return {REAL(bin) * length + start + move * extent, length / REAL(samples), extent};
}

__device__ inline Sample sample_of(const Axis& axis, int i, int size) {
  const REAL place = axis.start + REAL(i) * axis.step;
  if (!(place >= REAL(-0.5) && place <= REAL(size) - REAL(0.5)) || !size) return {false, 0, 0, 0};
  const REAL inside = clip(place, REAL(size - 1)), low = floor(inside);
  return {true, (int)low, (int)ceil(inside), inside - low};
}

__device__ inline int part_of(int bin, int bins, int parts) { return (int)floor(REAL(bin) / REAL(bins) * REAL(parts)); }

// count: (R, K, G, G). parts: 0 without offsets; trans (R, 2 K, parts, parts).
extern "C" __global__ void bins(int count, Shape s, int classes, int samples, int parts, REAL trans_std, const REAL* rois,
                                const REAL* trans, Bin* table, Count* counts, int* bad) {
  const int group = s.pooled_h;
  LOOP(i, count) {
    const int gw = i % group, gh = i / group % group, k = i / (group * group) % classes, r = i / (group * group * classes);
    const Roi roi = read_roi(s, rois, r, gw || gh || k ? nullptr : bad);
    REAL down = 0, right = 0;
    if (parts) {
      const REAL* of_class = trans + (size_t)(r * classes + k) * 2 * parts * parts;
      const int part = part_of(gh, group, parts) * parts + part_of(gw, group, parts);
      right = of_class[part] * trans_std;
      down = of_class[parts * parts + part] * trans_std;
    }
    const Bin bin = {axis_of(s, roi.y1, roi.y2, gh, group, samples, down), axis_of(s, roi.x1, roi.x2, gw, group, samples, right)};
    int rows = 0, columns = 0;
    for (int n = 0; n < samples; ++n) {
      rows += sample_of(bin.rows, n, s.height).used;
      columns += sample_of(bin.columns, n, s.width).used;
    }
    table[i] = bin;
    counts[i] = {roi.image, max(rows * columns, 1)};
  }
}

// The index in the table of the bin that output channel d has at (gh, gw).
__device__ inline unsigned bin_of(const Shape& s, int classes, int r, int d, int gh, int gw) {
  const int group = s.pooled_h, dim = s.channels / (group * group), k = (int)((long long)d * classes / dim);
  return ((r * classes + k) * group + gh) * group + gw;
}

// y (R, D, G, G).
extern "C" __global__ void pool(int count, Shape s, int classes, int samples, const Bin* table, const Count* counts, const REAL* x,
                                REAL* y) {
  const int group = s.pooled_h, dim = s.channels / (group * group);
  LOOP(i, count) {
    const int gw = i % group, gh = i / group % group, d = i / (group * group) % dim, r = i / (group * group * dim);
    const unsigned at = bin_of(s, classes, r, d, gh, gw);
    const Bin bin = table[at];
    const Count of = counts[at];
    REAL sum = 0;
    if (of.image >= 0) {
      const REAL* plane = x + (size_t)(of.image * s.channels + (d * group + gh) * group + gw) * s.height * s.width;
      for (int n = 0; n < samples; ++n) {
        const Sample row = sample_of(bin.rows, n, s.height);
        if (!row.used) continue;
        const REAL *upper = plane + row.low * s.width, *lower = plane + row.high * s.width;
        for (int m = 0; m < samples; ++m) {
          const Sample column = sample_of(bin.columns, m, s.width);
          if (!column.used) continue;
          const REAL left = 1 - column.share;
          sum += (1 - row.share) * (left * upper[column.low] + column.share * upper[column.high]) +
                 row.share * (left * lower[column.low] + column.share * lower[column.high]);
        }
      }
    }
    y[i] = sum / REAL(of.samples);
  }
}

// The weight of a pixel in the sum of the samples along an axis; -1 if no sample reads it.
__device__ inline REAL share_of(const Axis& axis, int samples, int size, int pixel) {
  const REAL first = clip(axis.start, REAL(size - 1)), last = clip(axis.start + REAL(samples - 1) * axis.step, REAL(size - 1));
  if (!(REAL(pixel + 1) > first && REAL(pixel - 1) < last)) return -1;
  REAL share = -1;
  for (int n = 0; n < samples; ++n) {
    const Sample of = sample_of(axis, n, size);
    if (!of.used || (pixel != of.low && pixel != of.high)) continue;
    // at a whole coordinate, low equals high, and the share is 0
    share = (share < 0 ? REAL(0) : share) + (pixel == of.low ? 1 - of.share : of.share);
  }
  return share;
}

// dx (N, D * G * G, H, W): each pixel adds the gradients from the rois of its image, in their order.
extern "C" __global__ void data_gradient(int count, Shape s, int classes, int samples, const Bin* table, const Count* counts,
                                         const REAL* dy, REAL* dx) {
  const int group = s.pooled_h, dim = s.channels / (group * group);
  LOOP(i, count) {
    const int w = i % s.width, h = i / s.width % s.height, plane = i / (s.width * s.height);
    const int c = plane % s.channels, image = plane / s.channels;
    const int gw = c % group, gh = c / group % group, d = c / (group * group);
    REAL sum = 0;
    for (int r = 0; r < s.rois; ++r) {
      const unsigned at = bin_of(s, classes, r, d, gh, gw);
      if (counts[at].image != image) continue;
      const Bin bin = table[at];
      const REAL row = share_of(bin.rows, samples, s.height, h);
      if (row < 0) continue;
      const REAL column = share_of(bin.columns, samples, s.width, w);
      if (column < 0) continue;
      sum += row * column * (dy[(size_t)((r * dim + d) * group + gh) * group + gw] / REAL(counts[at].samples));
    }
    dx[i] = sum;
  }
}

// dtrans (R, 2 K, parts, parts): a thread adds its part's bins, the channels of its class and their samples, in order.
extern "C" __global__ void trans_gradient(int count, Shape s, int classes, int samples, const Bin* table, const Count* counts,
                                          int parts, REAL trans_std, const REAL* x, const REAL* dy, REAL* dtrans) {
  const int group = s.pooled_h, dim = s.channels / (group * group), each = dim / classes;
  LOOP(i, count) {
    const int part_w = i % parts, part_h = i / parts % parts, channel = i / (parts * parts);
    const int down = channel % 2, k = channel / 2 % classes, r = channel / (2 * classes);
    REAL total = 0;
    for (int gh = 0; gh < group; ++gh)
      for (int gw = 0; gw < group; ++gw) {
        if (part_of(gh, group, parts) != part_h || part_of(gw, group, parts) != part_w) continue;
        const unsigned at = ((r * classes + k) * group + gh) * group + gw;
        const Bin bin = table[at];
        const Count of = counts[at];
        if (of.image < 0) continue;
        REAL sum = 0;
        for (int d = k * each; d < (k + 1) * each; ++d) {
          const REAL* plane = x + (size_t)(of.image * s.channels + (d * group + gh) * group + gw) * s.height * s.width;
          REAL slope = 0;
          for (int n = 0; n < samples; ++n) {
            const Sample row = sample_of(bin.rows, n, s.height);
            if (!row.used) continue;
            const REAL *upper = plane + row.low * s.width, *lower = plane + row.high * s.width;
            for (int m = 0; m < samples; ++m) {
              const Sample column = sample_of(bin.columns, m, s.width);
              if (!column.used) continue;
              const REAL low_low = upper[column.low], low_high = upper[column.high];
              const REAL high_low = lower[column.low], high_high = lower[column.high];
              slope += down ? (1 - column.share) * (high_low - low_low) + column.share * (high_high - low_high)
                            : (1 - row.share) * (low_high - low_low) + row.share * (high_high - high_low);
            }
          }
          sum += slope * dy[(size_t)((r * dim + d) * group + gh) * group + gw];
        }
        total += sum / REAL(of.samples) * (trans_std * (down ? bin.rows.extent : bin.columns.extent));
      }
    dtrans[i] = total;
  }
}
