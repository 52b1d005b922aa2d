// Pooling, MAX and AVE, of maps x (planes, H, W) to y (planes, PH, PW). See layers/pooling.py.
//
// Backward is a gather: each pixel adds up the windows that it lies in, in the CPU's order.
#include "common.cuh"

struct Window {
  int start, end, length;  // [start, end) on the map; length as the average counts it, padding included
};

__device__ Window window(int i, int size, int kernel, int stride, int pad) {
  const int start = i * stride - pad, end = min(start + kernel, size + pad);
  return {max(start, 0), min(end, size), end - start};
}

// The first and last window in which pixel i lies.
__device__ int first_window(int i, int kernel, int stride, int pad) { return i + pad < kernel ? 0 : (i + pad - kernel) / stride + 1; }
__device__ int last_window(int i, int pooled, int stride, int pad) { return min((i + pad) / stride, pooled - 1); }

// A thread a window. y: nullptr, or the maxima; mask: nullptr, or their indices h * W + w, -1 for none, as numbers; argmax: the same
// as integers.
extern "C" __global__ void max_pool(int count, const REAL* x, int h, int w, int ph, int pw, int kernel_h, int kernel_w, int stride_h,
                                    int stride_w, int pad_h, int pad_w, REAL* y, REAL* mask, int* argmax) {
  LOOP(i, count) {
    const Window rows = window(i / (unsigned)pw % (unsigned)ph, h, kernel_h, stride_h, pad_h);
    const Window columns = window(i % (unsigned)pw, w, kernel_w, stride_w, pad_w);
    const REAL* map = x + i / (unsigned)(ph * pw) * (unsigned)(h * w);
    REAL most = LOWEST;
    int at = -1;
    for (int row = rows.start; row < rows.end; ++row)
      for (int column = columns.start; column < columns.end; ++column) {
        const REAL value = map[row * w + column];
        if (value > most) {
          most = value;
          at = row * w + column;
        }
      }
    if (y) y[i] = most;
    if (mask) mask[i] = REAL(at);
    if (argmax) argmax[i] = at;
  }
}

// The same where a map has one window: 32 threads a map, 8 maps a block.
extern "C" __global__ void max_pool_whole(int planes, const REAL* x, int h, int w, int ph, int pw, int kernel_h, int kernel_w,
                                          int stride_h, int stride_w, int pad_h, int pad_w, REAL* y, REAL* mask, int* argmax) {
  __shared__ REAL most[8][32];
  __shared__ int at[8][32];
  const unsigned plane = blockIdx.x * 8 + threadIdx.y, t = threadIdx.x, m = threadIdx.y;
  const Window rows = window(0, h, kernel_h, stride_h, pad_h), columns = window(0, w, kernel_w, stride_w, pad_w);
  const int width = columns.end - columns.start, area = (rows.end - rows.start) * width;
  REAL mine = LOWEST;
  int where = -1;
  if (plane < (unsigned)planes)
    for (int j = t; j < area; j += 32) {
      const int pixel = (rows.start + j / width) * w + columns.start + j % width;
      const REAL value = x[plane * (unsigned)(h * w) + pixel];
      if (value > mine) {
        mine = value;
        where = pixel;
      }
    }
  most[m][t] = mine;
  at[m][t] = where;
  __syncthreads();
  for (unsigned half = 16; half; half /= 2) {
    if (t < half && (most[m][t + half] > most[m][t] || (most[m][t + half] == most[m][t] && at[m][t + half] < at[m][t]))) {
      most[m][t] = most[m][t + half];
      at[m][t] = at[m][t + half];
    }
    __syncthreads();
  }
  if (t == 0 && plane < (unsigned)planes) {
    if (y) y[plane] = most[m][0];
    if (mask) mask[plane] = REAL(at[m][0]);
    if (argmax) argmax[plane] = at[m][0];
  }
}

// A thread a pixel: dx is the sum of dy over the windows whose maximum it is.
extern "C" __global__ void max_pool_backward(int count, const REAL* dy, const int* argmax, int h, int w, int ph, int pw, int kernel_h,
                                             int kernel_w, int stride_h, int stride_w, int pad_h, int pad_w, REAL* dx) {
  LOOP(i, count) {
    const int at = i % (unsigned)(h * w), row = at / w, column = at % w;
    const unsigned start = i / (unsigned)(h * w) * (unsigned)(ph * pw);
    const int last_h = last_window(row, ph, stride_h, pad_h), last_w = last_window(column, pw, stride_w, pad_w);
    const int first_w = first_window(column, kernel_w, stride_w, pad_w);
    REAL sum = 0;
    for (int r = first_window(row, kernel_h, stride_h, pad_h); r <= last_h; ++r)
      for (int c = first_w; c <= last_w; ++c)
        if (argmax[start + r * pw + c] == at) sum += dy[start + r * pw + c];
    dx[i] = sum;
  }
}

// A thread a window: the mean.
extern "C" __global__ void ave_pool(int count, const REAL* x, int h, int w, int ph, int pw, int kernel_h, int kernel_w, int stride_h,
                                    int stride_w, int pad_h, int pad_w, REAL* y) {
  LOOP(i, count) {
    const Window rows = window(i / (unsigned)pw % (unsigned)ph, h, kernel_h, stride_h, pad_h);
    const Window columns = window(i % (unsigned)pw, w, kernel_w, stride_w, pad_w);
    const REAL* map = x + i / (unsigned)(ph * pw) * (unsigned)(h * w);
    REAL sum = 0;
    for (int column = columns.start; column < columns.end; ++column) {
      REAL part = 0;
      for (int row = rows.start; row < rows.end; ++row) part += map[row * w + column];
      sum += part;
    }
    y[i] = sum / (REAL(rows.length) * REAL(columns.length));
  }
}

// The same where a map has one window: 32 threads a map, 8 maps a block.
extern "C" __global__ void ave_pool_whole(int planes, const REAL* x, int h, int w, int ph, int pw, int kernel_h, int kernel_w,
                                          int stride_h, int stride_w, int pad_h, int pad_w, REAL* y) {
  __shared__ double part[8][32];
  const unsigned plane = blockIdx.x * 8 + threadIdx.y, t = threadIdx.x, m = threadIdx.y;
  const Window rows = window(0, h, kernel_h, stride_h, pad_h), columns = window(0, w, kernel_w, stride_w, pad_w);
  const int width = columns.end - columns.start, area = (rows.end - rows.start) * width;
  double sum = 0;
  if (plane < (unsigned)planes)
    for (int j = t; j < area; j += 32)
      sum += x[plane * (unsigned)(h * w) + (rows.start + j / width) * w + columns.start + j % width];
  part[m][t] = sum;
  __syncthreads();
  for (unsigned half = 16; half; half /= 2) {
    if (t < half) part[m][t] += part[m][t + half];
    __syncthreads();
  }
  if (t == 0 && plane < (unsigned)planes) y[plane] = REAL(part[m][0]) / (REAL(rows.length) * REAL(columns.length));
}

// A thread a pixel: dx is the sum of dy / size over the windows that it lies in.
extern "C" __global__ void ave_pool_backward(int count, const REAL* dy, int h, int w, int ph, int pw, int kernel_h, int kernel_w,
                                             int stride_h, int stride_w, int pad_h, int pad_w, REAL* dx) {
  LOOP(i, count) {
    const int at = i % (unsigned)(h * w), row = at / w, column = at % w;
    const unsigned start = i / (unsigned)(h * w) * (unsigned)(ph * pw);
    const int first_h = first_window(row, kernel_h, stride_h, pad_h), first_w = first_window(column, kernel_w, stride_w, pad_w);
    REAL sum = 0;
    for (int r = last_window(row, ph, stride_h, pad_h); r >= first_h; --r) {
      const REAL height = REAL(window(r, h, kernel_h, stride_h, pad_h).length);
      REAL part = 0;
      for (int c = last_window(column, pw, stride_w, pad_w); c >= first_w; --c)
        part += dy[start + r * pw + c] / (height * REAL(window(c, w, kernel_w, stride_w, pad_w).length));
      sum += part;
    }
    dx[i] = sum;
  }
}
