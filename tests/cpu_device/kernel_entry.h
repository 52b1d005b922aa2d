// What a compiled .cu file hands to the test device for each of its kernels, under the symbol cpu_kernel_NAME.
#pragma once
#include <cstddef>

struct KernelEntry {
  unsigned max_threads;        // of __launch_bounds__, or 1024
  std::size_t parameter_bytes; // how long the packed arguments of cuLaunchKernel must be
  // Runs the whole grid; returns nullptr, or what went wrong. grid and block hold x, y, z.
  const char* (*launch)(const unsigned* grid, const unsigned* block, char* parameters);
};
