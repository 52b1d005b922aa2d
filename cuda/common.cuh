// For all kernels. The compiler's command line defines REAL (float or double). No standard headers, because NVRTC compiles
// these files too.
#pragma once

// Every i in [0, n), n < 2^31, for a grid of any size (at most 2^20 blocks of 1024 threads).
#define LOOP(i, n) \
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (unsigned)(n); i += gridDim.x * blockDim.x)

// Every j in [0, n), divided among the threads of one block.
#define BLOCK_LOOP(j, n) for (unsigned j = threadIdx.x; j < (unsigned)(n); j += blockDim.x)

// The start of a line along the middle axis of (outer, length, inner). Its numbers are `inner` apart.
__device__ __forceinline__ unsigned line_start(unsigned line, unsigned length, unsigned inner) {
  return line / inner * length * inner + line % inner;
}

constexpr float LOWEST = -3.402823466e+38f;   // -FLT_MAX, where the originals' maxima start, in double nets too
