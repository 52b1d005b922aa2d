// Elementwise kernels over planes of `positions` numbers, with different constants for each plane. A thread reads the constants
// once, without a division for each number. Launched by launches.py's launch_planes.
#pragma once

// The plane of a thread. The last block may have threads past the last plane.
__device__ unsigned plane_of_thread() { return blockIdx.x * blockDim.y + threadIdx.y; }

// Each number i of the plane that belongs to this thread; none past the last plane. p: its index in the plane.
#define POSITIONS(i, plane, planes, positions)                                                                               \
  for (unsigned p = (plane) < (unsigned)(planes) ? blockIdx.y * blockDim.x + threadIdx.x : (unsigned)(positions),            \
                i = (plane) * (unsigned)(positions) + p;                                                                     \
       p < (unsigned)(positions); p += gridDim.y * blockDim.x, i += gridDim.y * blockDim.x)
