// Elementwise kernels over planes of `positions` numbers, each plane with constants of its own: what depends on the plane is
// found once for each thread, without a division for every number. Launched by blocks.py's launch_planes.
#pragma once

// The plane of a thread; there may be more threads than planes.
__device__ unsigned plane_of_thread() { return blockIdx.x * blockDim.y + threadIdx.y; }

// Every number i of the plane that is this thread's; p: its place in the plane.
#define POSITIONS(i, plane, positions)                                                                            \
  for (unsigned p = blockIdx.y * blockDim.x + threadIdx.x, i = (plane) * (unsigned)(positions) + p;               \
       p < (unsigned)(positions); p += gridDim.y * blockDim.x, i += gridDim.y * blockDim.x)
