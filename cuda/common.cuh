// What all kernels share. REAL (float or double) is defined by the compiler's command line. No standard headers:
// NVRTC compiles these files too.
#pragma once

// Every i in [0, n), n < 2^31, whatever the size of the grid (at most 2^20 blocks of 1024 threads).
#define LOOP(i, n) \
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (unsigned)(n); i += gridDim.x * blockDim.x)

constexpr float LOWEST = -3.402823466e+38f;   // -FLT_MAX, where the originals' maxima start, in double nets too
