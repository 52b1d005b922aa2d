// For the losses' kernels: a block's sums, which finish_loss of loss.cu adds up.
#pragma once

#include "common.cuh"
#include "sums.cuh"

constexpr int LOSS_THREADS = 256;  // threads of a block; LOSS_THREADS in launches.py

// Writes a block's sums of losses and counts to its row of partial (blocks, 2). Every thread must call this.
__device__ void put_sums(double loss, double counted, double* partial) {
  loss = block_sum(loss);
  counted = block_sum(counted);
  if (threadIdx.x == 0) {
    partial[2 * blockIdx.x] = loss;
    partial[2 * blockIdx.x + 1] = counted;
  }
}

// Sums over groups of `lanes` adjacent threads, a power of 2. The first thread of each group gets the result.
__device__ double lanes_sum(double mine, unsigned lanes) {
  __shared__ double part[LOSS_THREADS];
  const unsigned t = threadIdx.x, lane = t % lanes;
  if (lanes == 1) return mine;
  part[t] = mine;
  __syncthreads();
  for (unsigned half = lanes / 2; half; half /= 2) {
    if (lane < half) part[t] += part[t + half];
    __syncthreads();
  }
  return part[t];  // the next call first writes part[t], which only this thread reads here
}

// Backward's factor: the loss's diff over forward's divisor.
__device__ __forceinline__ REAL loss_scale(const REAL* dy, double divisor) { return (REAL)((double)*dy / divisor); }
