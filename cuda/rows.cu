// Rows of a table taken by their numbers, and gradients added to them. See layers/conv/inner_product.py and items.py.
#include "common.cuh"

// A number as a row's index; -1 if it is not a whole number in [0, rows).
__device__ int row_of(REAL number, int rows) { return number >= 0 && number < rows && floor(number) == number ? (int)number : -1; }

// y (items, width) = table (rows, width)[index[item]] + bias (width; nullptr: none). *bad becomes items - item for the first item
// without a row. count: items * width.
extern "C" __global__ void take(int count, int items, int width, const REAL* index, int rows, const REAL* table, const REAL* bias,
                                REAL* y, int* bad) {
  LOOP(i, count) {
    const int item = i / (unsigned)width, c = i % (unsigned)width, row = row_of(index[item], rows);
    if (row < 0) {
      if (c == 0) atomicMax(bad, items - item);
      y[i] = 0;
      continue;
    }
    const REAL value = table[(size_t)row * width + c];
    y[i] = bias ? value + bias[c] : value;
  }
}

// total (rows, width)[index[item]] += dy (items, width)[item]. A row's first item adds the sum over all its items.
extern "C" __global__ void add(int count, int items, int width, const REAL* index, int rows, const REAL* dy, REAL* total) {
  LOOP(i, count) {
    const int item = i / (unsigned)width, c = i % (unsigned)width, row = row_of(index[item], rows);
    if (row < 0) continue;
    const REAL number = index[item];
    int before = 0;
    while (before < item && index[before] != number) ++before;
    if (before < item) continue;
    REAL sum = 0;
    for (int j = item; j < items; ++j)
      if (index[j] == number) sum += dy[(size_t)j * width + c];
    total[(size_t)row * width + c] += sum;
  }
}
