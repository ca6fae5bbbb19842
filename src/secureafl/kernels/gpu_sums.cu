// Sums over threads and blocks, and medians, for all kernels of this folder; and the names of types.
//
// Sums are collected block by block and added up in a fixed order, so every run gives the same bits.

typedef unsigned char flag;
typedef long long index;

#define FULL 0xffffffffu
#define INFINITE __longlong_as_double(0x7ff0000000000000LL)

template <typename Number>
__device__ Number warp_sum(Number value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_down_sync(FULL, value, lane);
  return value;
}

// Whether this block is the last to finish; then it sees what all others have written.
__device__ bool is_last_block(unsigned* counter) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// Adds up COUNT numbers per thread over the block; the sums lie in `out`, `stride` apart.
template <int COUNT>
__device__ void block_sums(double* values, double* out, int stride) {
  __shared__ double partial[32][COUNT];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < COUNT; k++) {
    const double total = warp_sum(values[k]);
    if (lane == 0) partial[warp][k] = total;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < COUNT; k += blockDim.x) {
    double total = 0;
    for (int w = 0; w < blockDim.x / 32; w++) total += partial[w][k];
    out[(size_t)k * stride] = total;
  }
}

// Sum over the blocks of each of COUNT rows, by a warp per row; `use` gets its number and the sum.
template <int COUNT, typename Use>
__device__ void sums_over_blocks(const double* sums, Use use) {
  const int warps = ONE_CLIENT / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  double total[(COUNT + warps - 1) / warps];
#pragma unroll
  for (int k = 0; k < (COUNT + warps - 1) / warps; k++) total[k] = 0;
  for (int b = lane; b < gridDim.x; b += 32)
#pragma unroll
    for (int k = 0; k < (COUNT + warps - 1) / warps; k++) {
      const int row = k * warps + warp;
      if (row < COUNT) total[k] += __ldcg(sums + (size_t)row * gridDim.x + b);
    }
#pragma unroll
  for (int k = 0; k < (COUNT + warps - 1) / warps; k++) {
    const double sum = warp_sum(total[k]);
    if (lane == 0 && k * warps + warp < COUNT) use(k * warps + warp, sum);
  }
}

// From 0, where a value is `start` or less, to 1, where it is `end` or more.
__device__ double rise(double value, double start, double end) {
  return fmin(fmax((value - start) / (end - start), 0.0), 1.0);
}

// A number whose order among others is that of the value.
__device__ unsigned long long ordered(double value) {
  const unsigned long long bits = __double_as_longlong(value), sign = 1ull << 63;
  return bits & sign ? ~bits : bits | sign;
}

// Median of the values marked, of two middle ones the smaller; infinite if there are none. Bit by bit, from the highest:
// of the values that agree with the median so far, those without the bit are counted. One block, at most two values a
// thread, which keeps them: to read them again for every bit takes longer than to count.
template <typename Marked>
__device__ double lower_median(const double* values, Marked marked, int n) {
  __shared__ double middle;
  unsigned long long key[2];
  bool agrees[2];
  __syncthreads();
  for (int k = 0; k < 2; k++) {
    const int i = threadIdx.x + k * blockDim.x;
    agrees[k] = i < n && marked(i);
    key[k] = agrees[k] ? ordered(values[i]) : 0;
  }
  const auto count = [&](unsigned long long without) {
    const int first = __syncthreads_count(agrees[0] && !(key[0] & without));
    return n > blockDim.x ? first + __syncthreads_count(agrees[1] && !(key[1] & without)) : first;
  };
  int left = count(0), rank = (left - 1) / 2;
  if (left == 0) return INFINITE;
  for (unsigned long long bit = 1ull << 63; left > 1 && bit > 0; bit >>= 1) {
    const int without = count(bit);
    const bool set = rank >= without;
    left = set ? left - without : without;
    if (set) rank -= without;
    for (int k = 0; k < 2; k++) agrees[k] = agrees[k] && set == ((key[k] & bit) > 0);
  }
  for (int k = 0; k < 2; k++)
    if (agrees[k]) middle = values[threadIdx.x + k * blockDim.x];
  __syncthreads();
  return middle;
}

// Sum of a number over all clients, by one warp; every thread gets it.
template <typename Number>
__device__ double sum_over(int n, Number number) {
  double total = 0;
  for (int k = threadIdx.x % 32; k < n; k += 32) total += number(k);
  total = warp_sum(total);
  return __shfl_sync(FULL, total, 0);
}

// Writes the sums of the rows of a matrix, of which `entry(i, j)` is one entry, to `sums`; by all warps of the block.
template <typename Entry>
__device__ void row_sums(int n, double* sums, Entry entry) {
  for (int i = threadIdx.x / 32; i < n; i += blockDim.x / 32) {
    const double sum = sum_over(n, [&](int j) { return entry(i, j); });
    if (threadIdx.x % 32 == 0) sums[i] = sum;
  }
  __syncthreads();
}

// Writes one over the length that each client's row is taken for, at least the median one; 0 for the unknown.
__device__ void unit_scales(int n, const double* gram, const flag* known, double longest, double tiny, double* scale) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) scale[i] = sqrt(fmax(gram[i * n + i], 0.0));
  const double unit = lower_median(scale, [&](int i) { return known[i]; }, n);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    scale[i] = known[i] ? 1 / fmax(fmax(scale[i] / longest, unit), tiny) : 0;
  __syncthreads();
}
