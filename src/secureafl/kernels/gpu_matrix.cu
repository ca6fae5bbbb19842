// Matrices with a row and a column for each of CLIENTS, in registers: compiled between `gpu_sums.cu` and what needs them.
// A block has 32 warps; thread (warp, lane) holds the entries (warp + 32 r, lane + 32 c), so a row lies in one warp.

#define TILES ((CLIENTS + 31) / 32)
#define WIDTH (32 * TILES)
typedef double Matrix[TILES][TILES];

// Calls `use(entry, i, j)` for each entry of a matrix that this thread holds.
template <typename Use>
__device__ __forceinline__ void entries(Matrix& matrix, Use use) {
#pragma unroll
  for (int r = 0; r < TILES; r++)
#pragma unroll
    for (int c = 0; c < TILES; c++) use(matrix[r][c], threadIdx.x / 32 + 32 * r, threadIdx.x % 32 + 32 * c);
}

// Whether both are clients: what lies beyond only fills the last tiles.
__device__ bool inside(int i, int j) { return i < CLIENTS && j < CLIENTS; }

// The product of two matrices in memory, the first of them transposed, so that warps read rows of both.
__device__ __forceinline__ void multiply(const double* transposed, const double* other, Matrix& product) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  entries(product, [](double& entry, int, int) { entry = 0; });
#pragma unroll 2
  for (int k = 0; k < CLIENTS; k++) {
    double mine[TILES], theirs[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      mine[t] = warp + 32 * t < CLIENTS ? transposed[k * CLIENTS + warp + 32 * t] : 0;
      theirs[t] = lane + 32 * t < CLIENTS ? other[k * CLIENTS + lane + 32 * t] : 0;
    }
#pragma unroll
    for (int r = 0; r < TILES; r++)
#pragma unroll
      for (int c = 0; c < TILES; c++) product[r][c] += mine[r] * theirs[c];
  }
}

// Leaves the clients' positions along the principal axis in `axis`, scaled to length 1, by POWERS of the matrix, which
// is taken for one with trace 1, so that they stay in range. Its strength.
__device__ __forceinline__ double principal_axis(Matrix& products, double* axis) {
  __shared__ int longest;
  __shared__ double diagonal[CLIENTS], vectors[2][WIDTH];  // by turns, so that one barrier a power is enough
  __syncthreads();
  entries(products, [&](double& entry, int i, int j) {
    if (i == j && inside(i, j)) diagonal[i] = entry;
  });
  __syncthreads();
  const double trace = fmax(sum_over(CLIENTS, [&](int k) { return diagonal[k]; }), TINY);
  if (threadIdx.x < CLIENTS) {
    const double mine = diagonal[threadIdx.x];
    int before = 0;
    for (int k = 0; k < CLIENTS; k++) before += diagonal[k] > mine || (diagonal[k] == mine && k < threadIdx.x);
    if (before == 0) longest = threadIdx.x;
  }
  __syncthreads();
  entries(products, [&](double& entry, int i, int j) {
    if (j == longest) vectors[0][i] = entry / trace;
  });
  __syncthreads();
  for (int turn = 0; turn < POWERS; turn++) {
    const double* from = vectors[turn % 2];
#pragma unroll
    for (int r = 0; r < TILES; r++) {
      double sum = 0;
#pragma unroll
      for (int c = 0; c < TILES; c++) sum += products[r][c] * from[threadIdx.x % 32 + 32 * c];
      sum = warp_sum(sum);
      if (threadIdx.x % 32 == 0) vectors[1 - turn % 2][threadIdx.x / 32 + 32 * r] = sum / trace;
    }
    __syncthreads();
  }
  const auto norm = [&](const double* of) { return sqrt(sum_over(CLIENTS, [&](int k) { return of[k] * of[k]; })); };
  const double *last = vectors[POWERS % 2], length = norm(last), before = norm(vectors[1 - POWERS % 2]);
  if (threadIdx.x < CLIENTS) axis[threadIdx.x] = length > 0 ? last[threadIdx.x] / length : 0;
  __syncthreads();
  return before > 0 ? length / before * trace : 0;
}
