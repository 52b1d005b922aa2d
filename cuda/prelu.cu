// PReLU over x (N, channels, positions), with a slope for each channel. For a shared slope, channels is 1. See
// layers/neuron/relu.py.
#include "common.cuh"
#include "planes.cuh"
#include "sums.cuh"

// y may be x; kept: nullptr, or a copy of x.
extern "C" __global__ void prelu(int planes, int positions, int channels, const REAL* x, const REAL* slopes, REAL* y, REAL* kept) {
  const unsigned plane = plane_of_thread();
  const REAL slope = slopes[plane % (unsigned)channels];
  POSITIONS(i, plane, planes, positions) {
    const REAL value = x[i];
    if (kept) kept[i] = value;
    y[i] = value > 0 ? value : value * slope;
  }
}

// dx may be dy.
extern "C" __global__ void prelu_backward(int planes, int positions, int channels, const REAL* x, const REAL* slopes, const REAL* dy,
                                          REAL* dx) {
  const unsigned plane = plane_of_thread();
  const REAL slope = slopes[plane % (unsigned)channels];
  POSITIONS(i, plane, planes, positions) dx[i] = dy[i] * (x[i] > 0 ? REAL(1) : slope);
}

// One block for each channel of `numbers` numbers: dslopes += sum of dy * x where x is not positive.
extern "C" __global__ void prelu_sums(int numbers, int channels, int positions, const REAL* x, const REAL* dy, REAL* dslopes) {
  double sum = 0;
  BLOCK_LOOP(j, numbers) {
    const unsigned i = channel_index(j, blockIdx.x, channels, positions);
    const REAL value = x[i];
    sum += (double)dy[i] * (value > 0 ? REAL(0) : value);
  }
  put_block_sum(sum, true, dslopes + blockIdx.x);
}
