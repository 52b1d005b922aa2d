// Unpooling with AVE and TILE: x (maps, h, w) spread over windows of y (maps, out_h, out_w). upsample.cu has MAX.
// See layers/pool/unpooling.py.
#include "common.cuh"

// The number of pixels of window i on an axis; 0 past the end.
__device__ int length_of(int i, int stride, int kernel, int out) {
  const int left = out - i * stride;
  return left < 0 ? 0 : left < kernel ? left : kernel;
}

// The first window that contains a pixel.
__device__ int first_window(int pixel, int stride, int kernel) { return pixel < kernel ? 0 : (pixel - kernel) / stride + 1; }

extern "C" __global__ void spread(int count, int h, int w, int out_h, int out_w, int kernel_h, int kernel_w, int stride_h,
                                  int stride_w, int divides, const REAL* x, REAL* y) {
  LOOP(i, count) {
    const int column = (int)(i % (unsigned)out_w), row = (int)(i / (unsigned)out_w % (unsigned)out_h);
    const REAL* map = x + i / (unsigned)out_w / (unsigned)out_h * (unsigned)h * (unsigned)w;
    REAL sum = 0;
    for (int r = first_window(row, stride_h, kernel_h); r < h && r * stride_h <= row; ++r) {
      for (int c = first_window(column, stride_w, kernel_w); c < w && c * stride_w <= column; ++c) {
        const REAL value = map[r * w + c];
        sum += divides ? value / REAL(length_of(r, stride_h, kernel_h, out_h) * length_of(c, stride_w, kernel_w, out_w)) : value;
      }
    }
    y[i] = sum;
  }
}

extern "C" __global__ void spread_backward(int count, int h, int w, int out_h, int out_w, int kernel_h, int kernel_w, int stride_h,
                                           int stride_w, int divides, const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const int column = (int)(i % (unsigned)w), row = (int)(i / (unsigned)w % (unsigned)h);
    const REAL* map = dy + i / (unsigned)w / (unsigned)h * (unsigned)out_h * (unsigned)out_w;
    const int rows = length_of(row, stride_h, kernel_h, out_h), columns = length_of(column, stride_w, kernel_w, out_w);
    REAL sum = 0;
    for (int r = row * stride_h; r < row * stride_h + rows; ++r)
      for (int c = column * stride_w; c < column * stride_w + columns; ++c) sum += map[r * out_w + c];
    dx[i] = divides && rows && columns ? sum / REAL(rows * columns) : sum;
  }
}
