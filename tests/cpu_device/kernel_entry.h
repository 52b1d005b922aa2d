// What a compiled .cu file hands to the test device for each of its kernels, under the symbols cpu_kernel_NAME and cpu_needs_NAME.
#pragma once
#include <cstddef>

constexpr std::size_t most_parameters = 128;

struct KernelEntry {
  unsigned max_threads;        // of __launch_bounds__, or 1024
  std::size_t parameter_bytes; // how long the packed arguments of cuLaunchKernel must be
  // Runs the whole grid, its blocks in an order that `order` draws; returns nullptr, or what went wrong. grid and block: x, y, z.
  const char* (*launch)(const unsigned* grid, const unsigned* block, char* parameters, unsigned long long order);
  // Those of the packed arguments that are pointers; returns how many.
  std::size_t (*pointers)(char* parameters, const void** found);
};

// What ptxas says that a kernel takes; without ptxas, no registers and the __shared__ arrays that stand in the kernel itself.
struct KernelNeeds {
  unsigned registers;          // of a thread
  std::size_t shared_bytes;    // of a block
};
