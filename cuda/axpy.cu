// Axpy: out = a x + y, with one number a for each map. See layers/elementwise/products.py.
#include "common.cuh"
#include "planes.cuh"
#include "sums.cuh"

extern "C" __global__ void axpy(int maps, int positions, const REAL* a, const REAL* x, const REAL* y, REAL* out) {
  const unsigned map = plane_of_thread();
  if (map >= (unsigned)maps) return;
  const REAL factor = a[map];
  POSITIONS(i, map, maps, positions) out[i] = factor * x[i] + y[i];
}

// dx, dy: nullptr if not needed.
extern "C" __global__ void axpy_backward(int maps, int positions, const REAL* a, const REAL* dout, REAL* dx, REAL* dy) {
  const unsigned map = plane_of_thread();
  if (map >= (unsigned)maps) return;
  const REAL factor = a[map];
  POSITIONS(i, map, maps, positions) {
    const REAL d = dout[i];
    if (dx) dx[i] = factor * d;
    if (dy) dy[i] = d;
  }
}

// One block for each map: da = the sum of dout * x.
extern "C" __global__ void axpy_sums(int positions, const REAL* dout, const REAL* x, REAL* da) {
  const unsigned map = blockIdx.x;
  double sum = 0;
  for (unsigned p = threadIdx.x; p < (unsigned)positions; p += blockDim.x) {
    const unsigned i = map * (unsigned)positions + p;
    sum += (double)dout[i] * x[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) da[map] = REAL(sum);
}
