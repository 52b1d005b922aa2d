// Pooling, MAX and AVE, of maps x (planes, H, W) to y (planes, PH, PW). See layers/pool/pooling.py.
//
// Backward is a gather: each pixel adds its windows' gradients, in the CPU's order.
#include "common.cuh"

struct Pooling {
  int h, w, ph, pw;
  int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, end_h, end_w;  // pad: before the map, end: after it
  int counts_padding;
};

struct Range {
  int start, end, length;  // [start, end) on the map; length is the average's, with or without padding
};

__device__ Range window(int i, int size, int kernel, int stride, int pad, int after, bool counts_padding) {
  const int start = i * stride - pad, end = min(start + kernel, size + after);
  const int first = max(start, 0), last = min(end, size);
  return {first, last, counts_padding ? end - start : last - first};
}

__device__ Range rows_of(int row, const Pooling& s) {
  return window(row, s.h, s.kernel_h, s.stride_h, s.pad_h, s.end_h, s.counts_padding);
}
__device__ Range columns_of(int column, const Pooling& s) {
  return window(column, s.w, s.kernel_w, s.stride_w, s.pad_w, s.end_w, s.counts_padding);
}

// The windows along one axis that contain pixel i: start to end - 1.
__device__ Range windows_with(int i, int pooled, int kernel, int stride, int pad) {
  return {i + pad < kernel ? 0 : (i + pad - kernel) / stride + 1, min((i + pad) / stride, pooled - 1) + 1, 0};
}

// One thread for each window. y: nullptr, or the maxima. mask: nullptr, or their indices h * W + w as REALs, -1 for none.
// argmax: the same as integers.
extern "C" __global__ void max_pool(int count, const REAL* x, Pooling s, REAL* y, REAL* mask, int* argmax) {
  LOOP(i, count) {
    const Range rows = rows_of(i / (unsigned)s.pw % (unsigned)s.ph, s), columns = columns_of(i % (unsigned)s.pw, s);
    const REAL* map = x + i / (unsigned)(s.ph * s.pw) * (unsigned)(s.h * s.w);
    REAL most = LOWEST;
    int at = -1;
    for (int row = rows.start; row < rows.end; ++row)
      for (int column = columns.start; column < columns.end; ++column) {
        const REAL value = map[row * s.w + column];
        if (value > most) {
          most = value;
          at = row * s.w + column;
        }
      }
    if (y) y[i] = most;
    if (mask) mask[i] = REAL(at);
    if (argmax) argmax[i] = at;
  }
}

// The same for one window in each map: 32 threads for each map, 8 maps in each block.
extern "C" __global__ void max_pool_whole(int planes, const REAL* x, Pooling s, REAL* y, REAL* mask, int* argmax) {
  __shared__ REAL most[8][32];
  __shared__ int at[8][32];
  const unsigned plane = blockIdx.x * 8 + threadIdx.y, t = threadIdx.x, m = threadIdx.y;
  const Range rows = rows_of(0, s), columns = columns_of(0, s);
  const int width = columns.end - columns.start, area = (rows.end - rows.start) * width;
  REAL mine = LOWEST;
  int where = -1;
  if (plane < (unsigned)planes)
    for (int j = t; j < area; j += 32) {
      const int pixel = (rows.start + j / width) * s.w + columns.start + j % width;
      const REAL value = x[plane * (unsigned)(s.h * s.w) + pixel];
      if (value > mine) {
        mine = value;
        where = pixel;
      }
    }
  most[m][t] = mine;
  at[m][t] = where;
  __syncthreads();
  for (unsigned half = 16; half; half /= 2) {
    // of equal numbers the first pixel, as one thread would find
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

// One thread for each pixel: dx is the sum of dy over the windows with their maximum there.
extern "C" __global__ void max_pool_backward(int count, const REAL* dy, const int* argmax, Pooling s, REAL* dx) {
  LOOP(i, count) {
    const int at = i % (unsigned)(s.h * s.w);
    const unsigned start = i / (unsigned)(s.h * s.w) * (unsigned)(s.ph * s.pw);
    const Range rows = windows_with(at / s.w, s.ph, s.kernel_h, s.stride_h, s.pad_h);
    const Range columns = windows_with(at % s.w, s.pw, s.kernel_w, s.stride_w, s.pad_w);
    REAL sum = 0;
    for (int r = rows.start; r < rows.end; ++r)
      for (int c = columns.start; c < columns.end; ++c)
        if (argmax[start + r * s.pw + c] == at) sum += dy[start + r * s.pw + c];
    dx[i] = sum;
  }
}

// One thread for each window: the mean.
extern "C" __global__ void ave_pool(int count, const REAL* x, Pooling s, REAL* y) {
  LOOP(i, count) {
    const Range rows = rows_of(i / (unsigned)s.pw % (unsigned)s.ph, s), columns = columns_of(i % (unsigned)s.pw, s);
    const REAL* map = x + i / (unsigned)(s.ph * s.pw) * (unsigned)(s.h * s.w);
    REAL sum = 0;
    for (int column = columns.start; column < columns.end; ++column) {
      REAL part = 0;
      for (int row = rows.start; row < rows.end; ++row) part += map[row * s.w + column];
      sum += part;
    }
    y[i] = sum / (REAL(rows.length) * REAL(columns.length));
  }
}

// The same for one window in each map: 32 threads for each map, 8 maps in each block.
extern "C" __global__ void ave_pool_whole(int planes, const REAL* x, Pooling s, REAL* y) {
  __shared__ double part[8][32];
  const unsigned plane = blockIdx.x * 8 + threadIdx.y, t = threadIdx.x, m = threadIdx.y;
  const Range rows = rows_of(0, s), columns = columns_of(0, s);
  const int width = columns.end - columns.start, area = (rows.end - rows.start) * width;
  double sum = 0;
  if (plane < (unsigned)planes)
    for (int j = t; j < area; j += 32)
      sum += x[plane * (unsigned)(s.h * s.w) + (rows.start + j / width) * s.w + columns.start + j % width];
  part[m][t] = sum;
  __syncthreads();
  for (unsigned half = 16; half; half /= 2) {
    if (t < half) part[m][t] += part[m][t + half];
    __syncthreads();
  }
  if (t == 0 && plane < (unsigned)planes) y[plane] = REAL(part[m][0]) / (REAL(rows.length) * REAL(columns.length));
}

// One thread for each pixel: dx is the sum of dy / size over its windows.
extern "C" __global__ void ave_pool_backward(int count, const REAL* dy, Pooling s, REAL* dx) {
  LOOP(i, count) {
    const int at = i % (unsigned)(s.h * s.w);
    const unsigned start = i / (unsigned)(s.h * s.w) * (unsigned)(s.ph * s.pw);
    const Range rows = windows_with(at / s.w, s.ph, s.kernel_h, s.stride_h, s.pad_h);
    const Range columns = windows_with(at % s.w, s.pw, s.kernel_w, s.stride_w, s.pad_w);
    REAL sum = 0;
    for (int r = rows.end - 1; r >= rows.start; --r) {
      const REAL height = REAL(rows_of(r, s).length);
      REAL part = 0;
      for (int c = columns.end - 1; c >= columns.start; --c)
        part += dy[start + r * s.pw + c] / (height * REAL(columns_of(c, s).length));
      sum += part;
    }
    dx[i] = sum;
  }
}
