// Permute, Crop and others: two arrays with different strides. See layers/shape/rearranged.py and crop.py.
#include "common.cuh"

// The index in the other array of number i. table: the lengths of the axes, then the other array's strides. Strides may be
// negative, as for Reverse: unsigned sums wrap around, and the index counts from the address that is passed.
__device__ int elsewhere(unsigned i, int axes, const int* table) {
  unsigned place = 0;
  for (int axis = axes - 1; axis >= 0; --axis) {
    place += i % (unsigned)table[axis] * (unsigned)table[axes + axis];
    i /= (unsigned)table[axis];
  }
  return (int)place;
}

// y has count numbers, x may have more.
extern "C" __global__ void gather(int count, int axes, const int* table, const REAL* x, REAL* y) {
  LOOP(i, count) y[i] = x[elsewhere(i, axes, table)];
}

// The reverse: dy has count numbers; dx may have more, which stay unchanged.
extern "C" __global__ void scatter(int count, int axes, const int* table, const REAL* dy, REAL* dx) {
  LOOP(i, count) dx[elsewhere(i, axes, table)] = dy[i];
}
