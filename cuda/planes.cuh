// Elementwise kernels over planes of `positions` numbers, each plane with other constants: a thread reads them once, without a
// division for every number. Launched by launches.py's launch_planes.
#pragma once

// The plane of a thread; the last block may have more threads than there are planes left.
__device__ unsigned plane_of_thread() { return blockIdx.x * blockDim.y + threadIdx.y; }

// Every number i of the plane that belongs to this thread, none past the last plane; p: its place in the plane.
#define POSITIONS(i, plane, planes, positions)                                                                               \
  for (unsigned p = (plane) < (unsigned)(planes) ? blockIdx.y * blockDim.x + threadIdx.x : (unsigned)(positions),            \
                i = (plane) * (unsigned)(positions) + p;                                                                     \
       p < (unsigned)(positions); p += gridDim.y * blockDim.x, i += gridDim.y * blockDim.x)
