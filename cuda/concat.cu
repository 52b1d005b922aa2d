// Concat and Slice: rows of `length` numbers at `offset` in rows of `whole` numbers. See layers/shape/concat.py.
#include "common.cuh"
#include "planes.cuh"

// part (rows, length) -> joined.
extern "C" __global__ void put(int rows, int length, int whole, int offset, const REAL* part, REAL* joined) {
  const unsigned row = plane_of_thread();
  REAL* to = joined + (row * (unsigned)whole + offset);  // may lie past the end, because POSITIONS then writes nothing
  POSITIONS(i, row, rows, length) to[p] = part[i];
}

// joined -> part (rows, length).
extern "C" __global__ void take(int rows, int length, int whole, int offset, const REAL* joined, REAL* part) {
  const unsigned row = plane_of_thread();
  const REAL* from = joined + (row * (unsigned)whole + offset);
  POSITIONS(i, row, rows, length) part[i] = from[p];
}
