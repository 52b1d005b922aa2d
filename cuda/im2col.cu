// Windows of maps as columns, and columns added to their windows. See layers/conv/im2col.py and convolution.py.
#include "common.cuh"
#include "window.cuh"

// x: (images, channels, map). Windows `first` to first + windows - 1 of each image become columns: channel c, tap t, image n,
// window j is at (c * taps + t) * ld + n * image_stride + j. count: channels * images * windows.
extern "C" __global__ void im2col(int count, const REAL* x, REAL* columns, int channels, int images, int first, int windows,
                                  int ld, int image_stride, Window w) {
  LOOP(i, count) {
    const unsigned j = i % (unsigned)windows, plane = i / (unsigned)windows;
    const unsigned n = plane % (unsigned)images, c = plane / (unsigned)images;
    const Place corner = corner_of(first + j, w);
    const REAL* from = x + (size_t)(n * channels + c) * w.map();
    REAL* to = columns + (size_t)(c * w.taps()) * ld + (size_t)n * image_stride + j;
    for (int a = 0; a < w.kernel_d; ++a) {
      const int d = corner.d + a * w.dil_d;
      for (int b = 0; b < w.kernel_h; ++b) {
        const int h = corner.h + b * w.dil_h;
        const bool inside = 0 <= d && d < w.depth && 0 <= h && h < w.height;
        for (int e = 0; e < w.kernel_w; ++e, to += ld) {
          const int at = corner.w + e * w.dil_w;
          *to = inside && 0 <= at && at < w.width ? from[(d * w.height + h) * w.width + at] : REAL(0);
        }
      }
    }
  }
}

// The same sizes. Each pixel of x becomes the sum of its copies in the columns, in the order of the taps; with add, plus its
// old value.
// count: x's elements.
extern "C" __global__ void col2im(int count, const REAL* columns, REAL* x, int add, int channels, int first, int windows,
                                  int ld, int image_stride, Window w) {
  LOOP(i, count) {
    const unsigned pixel = i % (unsigned)w.map(), plane = i / (unsigned)w.map();
    const unsigned c = plane % (unsigned)channels, n = plane / (unsigned)channels;
    const Place at = place_of(pixel, w.height, w.width);
    const REAL* from = columns + (size_t)(c * w.taps()) * ld + (size_t)n * image_stride;
    REAL sum = add ? x[i] : REAL(0);
    for (int a = 0; a < w.kernel_d; ++a) {
      const int d = window_with(at.d + w.pad_d, a * w.dil_d, w.stride_d, w.out_d);
      if (d < 0) continue;
      for (int b = 0; b < w.kernel_h; ++b) {
        const int h = window_with(at.h + w.pad_h, b * w.dil_h, w.stride_h, w.out_h);
        if (h < 0) continue;
        for (int e = 0; e < w.kernel_w; ++e) {
          const int v = window_with(at.w + w.pad_w, e * w.dil_w, w.stride_w, w.out_w);
          const int j = (d * w.out_h + h) * w.out_w + v - first;
          if (v >= 0 && 0 <= j && j < windows) sum += from[(size_t)((a * w.kernel_h + b) * w.kernel_w + e) * ld + j];
        }
      }
    }
    x[i] = sum;
  }
}
