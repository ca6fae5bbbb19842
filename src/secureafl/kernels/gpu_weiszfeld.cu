// Distances of CLIENTS vectors from their weighted geometric median, from inner products: see `linalg.weiszfeld`, of
// which this is every step, in one block. Compiled after `gpu_sums.cu`.

// A squared distance; 0 where it is rounding.
__device__ double square_apart(const double* products, int i, int j) {
  const double together = products[i * CLIENTS + i] + products[j * CLIENTS + j];
  const double apart = together - 2 * products[i * CLIENTS + j];
  return apart > ROUNDING * together ? apart : 0;
}

// The weighted median, the lower one, of a vector's squared distances from all: the least that half of all weight is
// within. By one warp, which has room for the distances; every thread gets it.
__device__ double median_square(const double* products, const double* weights, double total, int i, double* room) {
  const int lane = threadIdx.x % 32;
  for (int j = lane; j < CLIENTS; j += 32) room[j] = square_apart(products, i, j);
  __syncwarp();
  double least = INFINITE;
  for (int j = lane; j < CLIENTS; j += 32) {
    double within = 0;
    for (int k = 0; k < CLIENTS; k++) within += room[k] <= room[j] ? weights[k] : 0;
    if (2 * within >= total) least = fmin(least, room[j]);
  }
  for (int other = 16; other > 0; other /= 2) least = fmin(least, __shfl_xor_sync(FULL, least, other));
  __syncwarp();
  return least;
}

// Squared distances of all vectors from the mean in which their shares are as `pull`.
__device__ void squares_from(const double* products, const double* pull, double* along, double* squares) {
  const double total = sum_over(CLIENTS, [&](int k) { return pull[k]; });
  row_sums(CLIENTS, along, [&](int i, int j) { return products[i * CLIENTS + j] * (pull[j] / total); });
  const double centre = sum_over(CLIENTS, [&](int k) { return pull[k] / total * along[k]; });
  for (int i = threadIdx.x; i < CLIENTS; i += blockDim.x)
    squares[i] = products[i * CLIENTS + i] - 2 * along[i] + centre;
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(1024) distances_from_median(
    const double* products, const double* weights, double* distances, int iterations, double smoothing) {
  __shared__ double weight[CLIENTS], pull[CLIENTS], along[CLIENTS], squares[CLIENTS], room[32][CLIENTS];
  for (int i = threadIdx.x; i < CLIENTS; i += blockDim.x) weight[i] = weights[i];
  __syncthreads();
  const double total = sum_over(CLIENTS, [&](int k) { return weight[k]; });
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int i = warp; i < CLIENTS; i += warps) {
    const double median = sqrt(median_square(products, weight, total, i, room[warp]));
    if (threadIdx.x % 32 == 0) pull[i] = weight[i] / fmax(median, smoothing);
  }
  __syncthreads();
  for (int round = 0; round < iterations; round++) {
    squares_from(products, pull, along, squares);
    for (int i = threadIdx.x; i < CLIENTS; i += blockDim.x) {
      const double least = fmax(ROUNDING * products[i * CLIENTS + i], smoothing * smoothing);
      pull[i] = weight[i] / sqrt(fmax(squares[i], least));
    }
    __syncthreads();
  }
  squares_from(products, pull, along, squares);
  for (int i = threadIdx.x; i < CLIENTS; i += blockDim.x)
    distances[i] = squares[i] > ROUNDING * products[i * CLIENTS + i] ? sqrt(squares[i]) : 0;
}
