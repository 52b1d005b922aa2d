// Sums by the threads of one block, in an order that depends only on the sizes.
#pragma once

// The sum of `mine` over the block's threads, returned to all. blockDim.x is a power of 2 up to 1024. Every thread must call
// this.
__device__ double block_sum(double mine) {
  __shared__ double part[1024];
  const unsigned t = threadIdx.x;
  part[t] = mine;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half; half /= 2) {
    if (t < half) part[t] += part[t + half];
    __syncthreads();
  }
  const double sum = part[0];
  __syncthreads();  // before the next sum overwrites part
  return sum;
}

// Writes the sum of `mine` over the block's threads to *to; with add, adds it.
__device__ void put_block_sum(double mine, bool add, REAL* to) {
  mine = block_sum(mine);
  if (threadIdx.x == 0) *to = (add ? *to : REAL(0)) + REAL(mine);
}

// Number j of channel c in (N, channels, positions), where each channel has N * positions numbers.
__device__ unsigned channel_index(unsigned j, unsigned c, unsigned channels, unsigned positions) {
  return positions == 1 ? j * channels + c : (j / positions * channels + c) * positions + j % positions;
}

// The mean and the biased variance of channel c's `numbers` numbers, computed by a block. All its threads must call this.
struct Moments {
  REAL mean, variance;
};

__device__ Moments channel_moments(const REAL* x, unsigned c, int numbers, int channels, int positions) {
  double sum = 0, squares = 0;
  BLOCK_LOOP(j, numbers) sum += x[channel_index(j, c, channels, positions)];
  const REAL mean = REAL(block_sum(sum) / numbers);
  BLOCK_LOOP(j, numbers) {
    const REAL distance = x[channel_index(j, c, channels, positions)] - mean;
    squares += (double)distance * distance;
  }
  return {mean, REAL(block_sum(squares) / numbers)};
}
