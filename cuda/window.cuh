// The sliding window of a convolution on maps of 3 axes. Maps with fewer axes get leading axes of length 1.
#pragma once

struct Window {
  int depth, height, width;        // of the map
  int out_d, out_h, out_w;         // windows along each axis
  int kernel_d, kernel_h, kernel_w;
  int stride_d, stride_h, stride_w;
  int pad_d, pad_h, pad_w;
  int dil_d, dil_h, dil_w;         // the distance between neighbouring taps
  __device__ int map() const { return depth * height * width; }
  __device__ int windows() const { return out_d * out_h * out_w; }
  __device__ int taps() const { return kernel_d * kernel_h * kernel_w; }
};

struct Place {
  int d, h, w;
};

// The place of number i in a (depth, height, width) block.
__device__ Place place_of(unsigned i, unsigned height, unsigned width) {
  const unsigned row = i / width;
  return {(int)(row / height), (int)(row % height), (int)(i % width)};
}

// The first pixel of a window, which may lie in the padding.
__device__ Place corner_of(unsigned i, const Window& w) {
  const Place at = place_of(i, w.out_h, w.out_w);
  return {at.d * w.stride_d - w.pad_d, at.h * w.stride_h - w.pad_h, at.w * w.stride_w - w.pad_w};
}

// The window on one axis with a tap, `reach` pixels from its corner, at pixel `at` (counting the padding); -1: none.
__device__ int window_with(int at, int reach, int stride, int windows) {
  const int start = at - reach;
  if (start < 0) return -1;
  if (stride == 1) return start < windows ? start : -1;
  const int i = start / stride;
  return i * stride == start && i < windows ? i : -1;
}
