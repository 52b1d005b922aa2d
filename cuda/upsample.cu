// Upsample and Unpooling: numbers placed by a mask, and repeated pixels. See layers/pool/unpooling.py and pool/unpooled.py.
#include "common.cuh"

// The place in y (maps of `pixels`) of number i of x (maps of `places`); -1 if the mask's index is not in y.
// The mask has an index for each number of x, or for the numbers of one map.
__device__ int place_of(unsigned i, int mask_count, int places, int pixels, const REAL* mask) {
  const REAL index = mask[i % (unsigned)mask_count];
  if (!(index >= 0 && index < pixels && index == floor(index))) return -1;
  return (int)(i / (unsigned)places * (unsigned)pixels) + (int)index;
}

extern "C" __global__ void no_winners(int count, int* winner) {
  LOOP(i, count) winner[i] = -1;
}

// winner[p] = the last number of x with place p; *wrong = mask_count - i for the first index i that is not in y.
extern "C" __global__ void find_winners(int count, int mask_count, int places, int pixels, const REAL* mask, int* wrong,
                                        int* winner) {
  LOOP(i, count) {
    const int place = place_of(i, mask_count, places, pixels, mask);
    if (place < 0) {
      atomicMax(wrong, mask_count - (int)(i % (unsigned)mask_count));
    } else {
      atomicMax(winner + place, (int)i);
    }
  }
}

extern "C" __global__ void put(int count, const int* winner, const REAL* x, REAL* y) {
  LOOP(i, count) y[i] = winner[i] < 0 ? REAL(0) : x[winner[i]];
}

extern "C" __global__ void put_backward(int count, int mask_count, int places, int pixels, const REAL* mask, const int* winner,
                                        const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const int place = place_of(i, mask_count, places, pixels, mask);
    dx[i] = place >= 0 && winner[place] == (int)i ? dy[place] : REAL(0);
  }
}

// y (lines * rows, width) from x (lines, width / columns): each pixel rows x columns times.
extern "C" __global__ void repeat(int count, int width, int rows, int columns, const REAL* x, REAL* y) {
  LOOP(i, count) {
    const unsigned line = i / (unsigned)width / (unsigned)rows;
    y[i] = x[line * ((unsigned)width / (unsigned)columns) + i % (unsigned)width / (unsigned)columns];
  }
}

// dx (lines, width): the sums over the copies.
extern "C" __global__ void repeat_backward(int count, int width, int rows, int columns, const REAL* dy, REAL* dx) {
  LOOP(i, count) {
    const unsigned wide = (unsigned)width * (unsigned)columns;
    const REAL* from = dy + i / (unsigned)width * (unsigned)rows * wide + i % (unsigned)width * (unsigned)columns;
    REAL sum = 0;
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column) sum += from[(unsigned)row * wide + (unsigned)column];
    dx[i] = sum;
  }
}
