// Matrix products without cuBLAS. See blas.py.
#include "common.cuh"

constexpr int TILE = 64;   // rows and columns of C for each block of 16 x 16 threads: 4 x 4 for each thread, 16 apart
constexpr int DEPTH = 16;  // columns of A and rows of B in shared memory at a time
constexpr int APART = TILE + 1;  // distance between its rows: threads that store down a column then use different banks

// One tile of op(M), DEPTH x TILE. [k][i] is k steps along the summed axis and i along the other one; 0 outside.
// Neighbouring threads read neighbours in memory: along the summed axis if `along`, else along the other one.
__device__ void fetch(REAL tile[DEPTH][APART], const REAL* matrix, int ld, bool along, int first, int count, int first_k, int k) {
  for (int t = threadIdx.y * 16 + threadIdx.x; t < TILE * DEPTH; t += 256) {
    const int d = along ? t % DEPTH : t / TILE, i = along ? t / DEPTH : t % TILE;
    const int row = along ? first + i : first_k + d, column = along ? first_k + d : first + i;
    tile[d][i] = first + i < count && first_k + d < k ? matrix[(long long)row * ld + column] : REAL(0);  // 0 adds nothing
  }
}

// C (m, n) = alpha op(A) (m, k) op(B) (k, n) + beta C, row-major, rows ld apart; `batch` such products, strides apart. With beta = 0
// C is not read. Blocks: x for the tiles of C, y for the batch.
extern "C" __global__ void gemm(int m, int n, int k, REAL alpha, const REAL* a, int lda, int a_transposed, long long a_stride,
                                const REAL* b, int ldb, int b_transposed, long long b_stride, REAL beta, REAL* c, int ldc,
                                long long c_stride, int batch) {
  __shared__ REAL of_a[DEPTH][APART], of_b[DEPTH][APART];
  const int tiles = (n - 1) / TILE + 1;
  const int first_row = blockIdx.x / tiles * TILE, first_column = blockIdx.x % tiles * TILE;
  for (int item = blockIdx.y; item < batch; item += gridDim.y) {
    REAL sum[4][4] = {};
    for (int first_k = 0; first_k < k; first_k += DEPTH) {
      fetch(of_a, a + item * a_stride, lda, !a_transposed, first_row, m, first_k, k);
      fetch(of_b, b + item * b_stride, ldb, b_transposed, first_column, n, first_k, k);
      __syncthreads();
      REAL part[4][4] = {};  // sums of short sums round less
      for (int d = 0; d < DEPTH; ++d)
        for (int i = 0; i < 4; ++i)
          for (int j = 0; j < 4; ++j)
            part[i][j] = fma(of_a[d][threadIdx.y + 16 * i], of_b[d][threadIdx.x + 16 * j], part[i][j]);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += part[i][j];
      __syncthreads();
    }
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + threadIdx.y + 16 * i;
      if (row >= m) break;
      REAL* of_c = c + item * c_stride + (long long)row * ldc;
      for (int j = 0; j < 4; ++j) {
        const int column = first_column + threadIdx.x + 16 * j;
        if (column >= n) break;
        const REAL product = alpha * sum[i][j];
        of_c[column] = beta == 0 ? product : fma(beta, of_c[column], product);
      }
    }
  }
}
