// Sums of a matrix's columns: the bias gradient of an inner product. See launches.py.
#include "common.cuh"

// total (columns) += the sums of the columns of x (rows, columns). A block of 32 x 32 threads sums 32 columns.
extern "C" __global__ void column_sums(int rows, int columns, const REAL* x, REAL* total) {
  __shared__ double part[32][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  double sum = 0;
  if (column < columns)
    for (int row = threadIdx.y; row < rows; row += 32) sum += x[(size_t)row * columns + column];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = 16; half; half /= 2) {
    if (threadIdx.y < half) part[threadIdx.y][threadIdx.x] += part[threadIdx.y + half][threadIdx.x];
    __syncthreads();
  }
  if (threadIdx.y == 0 && column < columns) total[column] += REAL(part[0][threadIdx.x]);
}
