// Concat and Slice: rows of `length` numbers that stand at `offset` in rows of `whole` numbers. See layers/concat.py and slice.py.
#include "common.cuh"

// part (rows, length) -> whole; count = rows * length.
extern "C" __global__ void put(int count, int length, int whole, int offset, const REAL* part, REAL* joined) {
  LOOP(i, count) joined[i / (unsigned)length * (unsigned)whole + offset + i % (unsigned)length] = part[i];
}

// whole -> part (rows, length); count = rows * length.
extern "C" __global__ void take(int count, int length, int whole, int offset, const REAL* joined, REAL* part) {
  LOOP(i, count) part[i] = joined[i / (unsigned)length * (unsigned)whole + offset + i % (unsigned)length];
}
