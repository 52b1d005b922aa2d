// The end of every loss: one number from the blocks' sums. See launches.py.
#include "loss.cuh"

// partial (blocks, 2): sums of losses and counts. loss = sum / divisor. The divisor is `fixed`, or if that is 0 the count (at
// least 1). divisor: nullptr, or the place to store it. One block of LOSS_THREADS.
extern "C" __global__ void finish_loss(int blocks, const double* partial, double fixed, REAL* loss, double* divisor) {
  double sum = 0, counted = 0;
  for (int i = threadIdx.x; i < blocks; i += LOSS_THREADS) {
    sum += partial[2 * i];
    counted += partial[2 * i + 1];
  }
  sum = block_sum(sum);
  counted = block_sum(counted);
  if (threadIdx.x) return;
  const double by = fixed ? fixed : counted < 1 ? 1.0 : counted;
  *loss = (REAL)(sum / by);
  if (divisor) *divisor = by;
}
