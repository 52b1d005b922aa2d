// Plain loops in the order of Caffe's CPU layers, channel by channel, bin by bin: ROIPooling's forward for benchmarks/roi.py; its
// backward, and PSROIPooling's forward and backward, for a Caffe without these layers (benchmarks/caffe.py). roi_pool keeps only
// the values if argmax == nullptr. The benchmarks compile them with g++ -O2.
#include <algorithm>
#include <cfloat>
#include <cmath>

extern "C" void roi_pool(const float* x, int channels, int height, int width, const float* rois, int count, int pooled_h,
                         int pooled_w, float scale, float* y, int* argmax) {
  for (int n = 0; n < count; ++n, rois += 5) {
    const int x1 = std::round(rois[1] * scale), y1 = std::round(rois[2] * scale);
    const int x2 = std::round(rois[3] * scale), y2 = std::round(rois[4] * scale);
    const float bin_h = static_cast<float>(std::max(y2 - y1 + 1, 1)) / pooled_h;
    const float bin_w = static_cast<float>(std::max(x2 - x1 + 1, 1)) / pooled_w;
    const float* plane = x + static_cast<long>(rois[0]) * channels * height * width;
    for (int c = 0; c < channels; ++c, plane += height * width) {
      for (int ph = 0; ph < pooled_h; ++ph) {
        for (int pw = 0; pw < pooled_w; ++pw, ++y) {
          const int hstart = std::min(std::max(static_cast<int>(std::floor(ph * bin_h)) + y1, 0), height);
          const int wstart = std::min(std::max(static_cast<int>(std::floor(pw * bin_w)) + x1, 0), width);
          const int hend = std::min(std::max(static_cast<int>(std::ceil((ph + 1) * bin_h)) + y1, 0), height);
          const int wend = std::min(std::max(static_cast<int>(std::ceil((pw + 1) * bin_w)) + x1, 0), width);
          float best = hend <= hstart || wend <= wstart ? 0 : -FLT_MAX;
          int where = -1;
          for (int h = hstart; h < hend; ++h) {
            for (int w = wstart; w < wend; ++w) {
              if (plane[h * width + w] > best) {
                best = plane[h * width + w];
                where = h * width + w;
              }
            }
          }
          *y = best;
          if (argmax) *argmax++ = where;
        }
      }
    }
  }
}

// Adds to dx.
extern "C" void roi_pool_backward(const float* dy, const int* argmax, int channels, int height, int width, const float* rois,
                                  int count, int pooled_h, int pooled_w, float* dx) {
  for (int n = 0; n < count; ++n, rois += 5) {
    float* plane = dx + static_cast<long>(rois[0]) * channels * height * width;
    for (int c = 0; c < channels; ++c, plane += height * width) {
      for (int i = 0; i < pooled_h * pooled_w; ++i, ++dy, ++argmax) {
        if (*argmax >= 0) plane[*argmax] += *dy;
      }
    }
  }
}

// backward: adds y's gradient to x's; otherwise computes y from x. x has channels * group * group channels.
extern "C" void psroi_pool(float* x, int channels, int height, int width, const float* rois, int count, int group, float scale,
                           float* y, int backward) {
  for (int n = 0; n < count; ++n, rois += 5) {
    const float left = std::round(rois[1]) * scale, top = std::round(rois[2]) * scale;
    const float right = (std::round(rois[3]) + 1) * scale, bottom = (std::round(rois[4]) + 1) * scale;
    const float bin_h = std::max(bottom - top, 0.1f) / group, bin_w = std::max(right - left, 0.1f) / group;
    float* image = x + static_cast<long>(rois[0]) * channels * group * group * height * width;
    for (int c = 0; c < channels; ++c) {
      for (int ph = 0; ph < group; ++ph) {
        for (int pw = 0; pw < group; ++pw, ++y) {
          const int hstart = std::min(std::max(static_cast<int>(std::floor(ph * bin_h + top)), 0), height);
          const int wstart = std::min(std::max(static_cast<int>(std::floor(pw * bin_w + left)), 0), width);
          const int hend = std::min(std::max(static_cast<int>(std::ceil((ph + 1) * bin_h + top)), 0), height);
          const int wend = std::min(std::max(static_cast<int>(std::ceil((pw + 1) * bin_w + left)), 0), width);
          const int area = (hend - hstart) * (wend - wstart);
          float* plane = image + static_cast<long>((c * group + ph) * group + pw) * height * width;
          float sum = 0;
          for (int h = hstart; h < hend; ++h) {
            for (int w = wstart; w < wend; ++w) {
              if (backward) {
                plane[h * width + w] += *y / area;
              } else {
                sum += plane[h * width + w];
              }
            }
          }
          if (!backward) *y = hend <= hstart || wend <= wstart ? 0 : sum / area;
        }
      }
    }
  }
}
