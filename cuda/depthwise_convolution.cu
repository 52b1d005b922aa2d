// Depthwise convolutions, with `multiplier` kernels for each channel, without columns. See convolution.py.
#include "common.cuh"
#include "sums.cuh"
#include "window.cuh"

// y (N, channels * multiplier, windows) from x (N, channels, map) and weight (channels * multiplier, taps). count: y's elements.
extern "C" __global__ void convolve(int count, const REAL* x, const REAL* weight, REAL* y, int channels, int multiplier,
                                    Window w) {
  LOOP(i, count) {
    const unsigned plane = i / (unsigned)w.windows();
    const Place corner = corner_of(i % (unsigned)w.windows(), w);
    const REAL* from = x + (size_t)(plane / (unsigned)multiplier) * w.map();
    const REAL* of = weight + (size_t)(plane % (unsigned)(channels * multiplier)) * w.taps();
    REAL sum = 0;
    for (int a = 0; a < w.kernel_d; ++a) {
      const int d = corner.d + a * w.dil_d;
      if (d < 0 || d >= w.depth) continue;
      for (int b = 0; b < w.kernel_h; ++b) {
        const int h = corner.h + b * w.dil_h;
        if (h < 0 || h >= w.height) continue;
        for (int e = 0; e < w.kernel_w; ++e) {
          const int at = corner.w + e * w.dil_w;
          if (0 <= at && at < w.width)
            sum = fma(of[(a * w.kernel_h + b) * w.kernel_w + e], from[(d * w.height + h) * w.width + at], sum);
        }
      }
    }
    y[i] = sum;
  }
}

// dx from dy and weight: convolve's transpose, as a gather. count: dx's elements.
extern "C" __global__ void data_gradient(int count, const REAL* dy, const REAL* weight, REAL* dx, int channels, int multiplier,
                                         Window w) {
  LOOP(i, count) {
    // x's plane p belongs to y's planes from p * multiplier on
    const unsigned plane = i / (unsigned)w.map(), c = plane % (unsigned)channels;
    const Place at = place_of(i % (unsigned)w.map(), w.height, w.width);
    REAL sum = 0;
    for (int m = 0; m < multiplier; ++m) {
      const REAL* from = dy + ((size_t)plane * multiplier + m) * w.windows();
      const REAL* of = weight + ((size_t)c * multiplier + m) * w.taps();
      for (int a = 0; a < w.kernel_d; ++a) {
        const int d = window_with(at.d + w.pad_d, a * w.dil_d, w.stride_d, w.out_d);
        if (d < 0) continue;
        for (int b = 0; b < w.kernel_h; ++b) {
          const int h = window_with(at.h + w.pad_h, b * w.dil_h, w.stride_h, w.out_h);
          if (h < 0) continue;
          for (int e = 0; e < w.kernel_w; ++e) {
            const int v = window_with(at.w + w.pad_w, e * w.dil_w, w.stride_w, w.out_w);
            if (v >= 0) sum = fma(of[(a * w.kernel_h + b) * w.kernel_w + e], from[(d * w.out_h + h) * w.out_w + v], sum);
          }
        }
      }
    }
    dx[i] = sum;
  }
}

// One block for each number of the weight: dweight += the sum of dy * x over `numbers` = images * windows.
extern "C" __global__ void weight_gradient(int numbers, const REAL* x, const REAL* dy, REAL* dweight, int channels,
                                           int multiplier, Window w) {
  const unsigned m = blockIdx.x / (unsigned)w.taps();
  const Place tap = place_of(blockIdx.x % (unsigned)w.taps(), w.kernel_h, w.kernel_w);
  const unsigned outputs = channels * multiplier;
  double sum = 0;
  BLOCK_LOOP(i, numbers) {
    const unsigned j = i % (unsigned)w.windows(), plane = i / (unsigned)w.windows() * outputs + m;
    const Place corner = corner_of(j, w);
    const int d = corner.d + tap.d * w.dil_d, h = corner.h + tap.h * w.dil_h, at = corner.w + tap.w * w.dil_w;
    if (0 <= d && d < w.depth && 0 <= h && h < w.height && 0 <= at && at < w.width)
      sum += (double)dy[(size_t)plane * w.windows() + j] *
             x[(size_t)(plane / (unsigned)multiplier) * w.map() + (d * w.height + h) * w.width + at];
  }
  put_block_sum(sum, true, dweight + blockIdx.x);
}
