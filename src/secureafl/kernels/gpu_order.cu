// Order statistics over CLIENTS clients in every coordinate, a thread for each: see `kernels.order`. Compiled after
// `gpu_sums.cu`, with the exchanges of a sorting network as NETWORK.

#define EXCHANGE(i, j) { const float low = fminf(v[i], v[j]); v[j] = fmaxf(v[i], v[j]), v[i] = low; }

// The values of the clients present in one coordinate, in ascending order; infinite for the others, and what is not a number.
__device__ __forceinline__ void ordered_column(const float* values, const flag* present, int d, int j, float (&v)[CLIENTS]) {
#pragma unroll
  for (int i = 0; i < CLIENTS; i++) {
    const float value = values[(size_t)i * d + j];
    v[i] = present[i] && value == value ? value : __int_as_float(0x7f800000);
  }
  NETWORK
}

// Copies which clients are present to where all threads of a block read them at once.
__device__ __forceinline__ const flag* shared_flags(const flag* present) {
  __shared__ flag there[CLIENTS];
  for (int i = threadIdx.x; i < CLIENTS; i += blockDim.x) there[i] = present[i];
  __syncthreads();
  return there;
}

extern "C" __global__ void ordered_values(const float* values, const flag* present, float* sorted, int d) {
  const flag* there = shared_flags(present);
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= d) return;
  float v[CLIENTS];
  ordered_column(values, there, d, j, v);
#pragma unroll
  for (int i = 0; i < CLIENTS; i++) sorted[(size_t)i * d + j] = v[i];
}

// Mean of the first-th to last-th smallest. Divided before they are added: the sum might not fit.
extern "C" __global__ void order_mean(const float* values, const flag* present, const index* first_at,
                                      const index* last_at, float* mean, int d) {
  const flag* there = shared_flags(present);
  const int j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j >= d) return;
  const index first = *first_at, last = *last_at;
  float v[CLIENTS], total = 0;
  ordered_column(values, there, d, j, v);
#pragma unroll
  for (int i = 0; i < CLIENTS; i++) total += i >= first && i <= last ? v[i] / (last - first + 1) : 0;
  mean[j] = total;
}
