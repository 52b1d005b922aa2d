// The plain loop for benchmarks/roi.py: ROIPooling's forward in the order of Caffe's CPU layer, channel by channel, bin by bin.
// With argmax == nullptr it keeps only the values. The benchmark compiles it with g++ -O2.
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
