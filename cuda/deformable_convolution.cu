// DeformableConvolution and ModulatedDeformableConvolution: columns of bilinear samples, and their transposes, of one image at a
// time. See layers/conv/deformable_convolution.py and deformable_convolution.py.
//
// mask: (groups, taps, windows) of one image, a factor for each sample; nullptr: DeformableConvolution. With a mask the map has
// a rim of zeros, one pixel wide, which is not stored.
//
// A sample is (deformable group, tap, window), numbered in that order; `samples` of a group: taps * windows. The data gradient
// of a pixel adds what samples read there. count_readers, starts, fill and sort_readers list these samples for each pixel, in
// rising order whatever the order of the threads. data_gradient then adds in the list's order.
#include "common.cuh"
#include "window.cuh"

struct Sample {
  bool inside;
  int low_h, high_h, low_w, high_w;
  REAL share_h, share_w, factor;
  // Neighbour 0 to 3: low low, low high, high low, high high. -1: in the rim.
  __device__ int pixel(int k, const Window& w) const {
    const int row = k & 2 ? high_h : low_h, column = k & 1 ? high_w : low_w;
    return row >= 0 && row < w.height && column >= 0 && column < w.width ? row * w.width + column : -1;
  }
  __device__ REAL share(int k) const { return (k & 2 ? share_h : 1 - share_h) * (k & 1 ? share_w : 1 - share_w); }
  __device__ REAL read(int k, const REAL* plane, const Window& w) const {
    const int at = pixel(k, w);
    return at < 0 ? REAL(0) : plane[at];
  }
  // The sample without its factor; 0 off the map.
  __device__ REAL value(const REAL* plane, const Window& w) const {
    REAL sum = 0;
    for (int k = 0; inside && k < 4; ++k) sum += share(k) * read(k, plane, w);
    return sum;
  }
};

__device__ inline bool along(int corner, int step, REAL move, int size, int& low, int& high, REAL& share) {
  const REAL at = REAL(corner + step) + move;
  if (!(at >= 0 && at < REAL(size))) return false;
  const REAL own = REAL(step) + move, whole = floor(own);  // counted from the window's corner
  low = (int)whole + corner;
  low = low < 0 ? 0 : low > size - 1 ? size - 1 : low;
  high = low >= size - 1 ? low : low + 1;
  share = low >= size - 1 ? REAL(0) : own - whole;
  return true;
}

// offset: (groups, taps, 2, windows) of one image.
__device__ inline Sample sample_of(unsigned sample, const REAL* offset, const REAL* mask, const Window& w) {
  const unsigned windows = w.windows(), window = sample % windows, row = sample / windows, tap = row % (unsigned)w.taps();
  const Place corner = corner_of(window, w);
  const REAL* move = offset + (size_t)row * 2 * windows + window;
  const int rim = mask ? 1 : 0, height = w.height + 2 * rim, width = w.width + 2 * rim;
  const int down = (int)(tap / (unsigned)w.kernel_w) * w.dil_h, right = (int)(tap % (unsigned)w.kernel_w) * w.dil_w;
  Sample s = {false, 0, 0, 0, 0, 0, 0, mask ? mask[sample] : REAL(1)};
  s.inside = along(corner.h + rim, down, move[0], height, s.low_h, s.high_h, s.share_h) &&
             along(corner.w + rim, right, move[windows], width, s.low_w, s.high_w, s.share_w);
  s.low_h -= rim, s.high_h -= rim, s.low_w -= rim, s.high_w -= rim;
  return s;
}

// columns (C, taps, windows) of x (C, map). A thread computes one sample in all `channels` of its group. count: all groups'
// samples.
extern "C" __global__ void columns(int count, const REAL* x, const REAL* offset, const REAL* mask, REAL* columns, int channels,
                                   Window w) {
  const unsigned samples = w.taps() * w.windows();
  LOOP(i, count) {
    const Sample s = sample_of(i, offset, mask, w);
    const unsigned group = i / samples;
    const REAL* plane = x + (size_t)group * channels * w.map();
    REAL* to = columns + (size_t)group * channels * samples + i % samples;
    for (int c = 0; c < channels; ++c, plane += w.map(), to += samples) *to = s.factor * s.value(plane, w);
  }
}

// dmask of one image, from the columns' gradient.
extern "C" __global__ void mask_gradient(int count, const REAL* x, const REAL* offset, const REAL* mask, const REAL* columns,
                                         REAL* dmask, int channels, Window w) {
  const unsigned samples = w.taps() * w.windows();
  LOOP(i, count) {
    const Sample s = sample_of(i, offset, mask, w);
    const unsigned group = i / samples;
    const REAL* plane = x + (size_t)group * channels * w.map();
    const REAL* from = columns + (size_t)group * channels * samples + i % samples;
    REAL sum = 0;
    for (int c = 0; c < channels; ++c, plane += w.map(), from += samples) sum += *from * s.value(plane, w);
    dmask[i] = sum;
  }
}

// doffset of one image, from the columns' gradient.
extern "C" __global__ void offset_gradient(int count, const REAL* x, const REAL* offset, const REAL* mask, const REAL* columns,
                                           REAL* doffset, int channels, Window w) {
  const unsigned windows = w.windows(), samples = w.taps() * windows;
  LOOP(i, count) {
    const Sample s = sample_of(i, offset, mask, w);
    const unsigned group = i / samples;
    const REAL* plane = x + (size_t)group * channels * w.map();
    const REAL* from = columns + (size_t)group * channels * samples + i % samples;
    REAL down = 0, right = 0;
    for (int c = 0; s.inside && c < channels; ++c, plane += w.map(), from += samples) {
      const REAL low_low = s.read(0, plane, w), low_high = s.read(1, plane, w);
      const REAL high_low = s.read(2, plane, w), high_high = s.read(3, plane, w);
      down += *from * ((1 - s.share_w) * (high_low - low_low) + s.share_w * (high_high - low_high));
      right += *from * ((1 - s.share_h) * (low_high - low_low) + s.share_h * (high_high - high_low));
    }
    REAL* to = doffset + (size_t)(i / windows) * 2 * windows + i % windows;
    to[0] = s.factor * down;
    to[windows] = s.factor * right;
  }
}

// counts (groups, pixels), initially 0: how often samples read each pixel.
extern "C" __global__ void count_readers(int count, const REAL* offset, const REAL* mask, int* counts, Window w) {
  const unsigned samples = w.taps() * w.windows();
  LOOP(i, count) {
    const Sample s = sample_of(i, offset, mask, w);
    int* of_group = counts + (i / samples) * w.map();
    for (int k = 0; s.inside && k < 4; ++k)
      if (s.pixel(k, w) >= 0) atomicAdd(of_group + s.pixel(k, w), 1);
  }
}

// starts[i] = next[i] = the sum of the counts before i; starts[count]: the sum of all. One block of 1024.
extern "C" __global__ void starts(int count, const int* counts, int* starts, int* next) {
  __shared__ int before[1024];
  const unsigned t = threadIdx.x, each = ((unsigned)count + 1023) / 1024;
  const unsigned first = min(t * each, (unsigned)count), end = min(first + each, (unsigned)count);
  int sum = 0;
  for (unsigned i = first; i < end; ++i) sum += counts[i];
  before[t] = sum;
  __syncthreads();
  if (t == 0) {
    int total = 0;
    for (int i = 0; i < 1024; ++i) {
      const int mine = before[i];
      before[i] = total;
      total += mine;
    }
    starts[count] = total;
  }
  __syncthreads();
  sum = before[t];
  for (unsigned i = first; i < end; ++i) {
    starts[i] = next[i] = sum;
    sum += counts[i];
  }
}

// readers: 4 * sample + neighbour, in any order from each pixel's start.
extern "C" __global__ void fill(int count, const REAL* offset, const REAL* mask, int* next, int* readers, Window w) {
  const unsigned samples = w.taps() * w.windows();
  LOOP(i, count) {
    const Sample s = sample_of(i, offset, mask, w);
    int* of_group = next + (i / samples) * w.map();
    for (int k = 0; s.inside && k < 4; ++k)
      if (s.pixel(k, w) >= 0) readers[atomicAdd(of_group + s.pixel(k, w), 1)] = 4 * (int)i + k;
  }
}

__device__ inline void sift(int* heap, int root, int length) {
  const int value = heap[root];
  for (int child = 2 * root + 1; child < length; child = 2 * root + 1) {
    if (child + 1 < length && heap[child + 1] > heap[child]) ++child;
    if (heap[child] <= value) break;
    heap[root] = heap[child];
    root = child;
  }
  heap[root] = value;
}

// Sorts the readers of each pixel (heapsort). Then they are sample numbers in their group, and shares are the samples' weights
// times their factors.
extern "C" __global__ void sort_readers(int count, const REAL* offset, const REAL* mask, const int* starts, int* readers,
                                        REAL* shares, Window w) {
  const unsigned samples = w.taps() * w.windows();
  LOOP(i, count) {
    int* mine = readers + starts[i];
    const int length = starts[i + 1] - starts[i];
    for (int root = length / 2 - 1; root >= 0; --root) sift(mine, root, length);
    for (int end = length - 1; end > 0; --end) {
      const int greatest = mine[0];
      mine[0] = mine[end];
      mine[end] = greatest;
      sift(mine, 0, end);
    }
    for (int j = 0; j < length; ++j) {
      const unsigned sample = (unsigned)mine[j] / 4;
      const Sample s = sample_of(sample, offset, mask, w);
      shares[starts[i] + j] = s.factor * s.share(mine[j] % 4);
      mine[j] = (int)(sample % samples);
    }
  }
}

// dx (C, map) from the columns' gradient. count: C * pixels; channels: in each group.
extern "C" __global__ void data_gradient(int count, const REAL* columns, const int* starts, const int* readers, const REAL* shares,
                                         REAL* dx, int channels, Window w) {
  const unsigned pixels = w.map(), samples = w.taps() * w.windows();
  LOOP(i, count) {
    const unsigned c = i / pixels, at = c / (unsigned)channels * pixels + i % pixels;
    const REAL* from = columns + (size_t)c * samples;
    REAL sum = 0;
    for (int j = starts[at]; j < starts[at + 1]; ++j) sum += shares[j] * from[readers[j]];
    dx[i] = sum;
  }
}
