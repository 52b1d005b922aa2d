// ChannelNorm: y = sqrt(the sum of x^2 over the channels). See layers/forks/flownet/flownet_layers.py.
#include "common.cuh"

extern "C" __global__ void channel_norm(int count, int channels, int positions, const REAL* x, REAL* y) {
  LOOP(i, count) {
    const unsigned first = i / (unsigned)positions * channels * positions + i % (unsigned)positions;
    double sum = 0;
    for (unsigned c = 0; c < (unsigned)channels; ++c) {
      const double value = x[first + c * positions];
      sum += value * value;
    }
    y[i] = REAL(sqrt(sum));
  }
}

extern "C" __global__ void channel_norm_backward(int count, int channels, int positions, const REAL* x, const REAL* y,
                                                 const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const unsigned place = i / ((unsigned)channels * positions) * positions + i % (unsigned)positions;
    dx[i] = y[place] == 0 ? REAL(0) : x[i] * (dy[place] / y[place]);
  }
}
