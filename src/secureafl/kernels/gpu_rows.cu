// Rows of tables whose numbers are known on the GPU only: see `kernels.rows`. Compiled after `gpu_sums.cu`, with WORD, an
// unsigned integer as long as what is only copied, and PIXEL, which inputs are made of.

// A row's number. As in torch, work with a wrong one ends, before it writes to anything else.
__device__ __forceinline__ index inside(index row, int rows) {
  if (row < 0 || row >= rows) __trap();
  return row;
}

// By all threads of the grid.
template <typename Number>
__device__ __forceinline__ void copy(const Number* from, Number* to, int size) {
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < size; j += gridDim.x * blockDim.x) to[j] = from[j];
}

extern "C" __global__ void set_row(WORD* table, const index* at, const WORD* value, const flag* keep, int rows, int size) {
  if (*keep) copy(value, table + (size_t)inside(*at, rows) * size, size);
}

// Whether each block's part of a vector is finite.
extern "C" __global__ void finite_parts(const float* values, flag* parts, int size) {
  bool finite = true;
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < size; j += gridDim.x * blockDim.x)
    finite = finite && fabsf(values[j]) < __int_as_float(0x7f800000);
  const bool all = __syncthreads_and(finite);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

// Sets a row that was found finite by as many blocks.
extern "C" __global__ void note_row(float* table, flag* known, const index* at, const float* value, const flag* heard,
                                    const flag* parts, int rows, int size) {
  const index row = inside(*at, rows);
  bool told = heard[row];
  for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) told = told && parts[b];
  if (!__syncthreads_and(told)) return;
  copy(value, table + (size_t)row * size, size);
  if (blockIdx.x == 0 && threadIdx.x == 0) known[row] = true;
}

// A sample to each column of blocks. Torch's operations, rounded as there: nothing is contracted.
extern "C" __global__ void draw_batch(const PIXEL* inputs, const WORD* labels, const index* drawn, const float* mean,
                                      const float* std, float* batch, WORD* batch_labels, int samples, int size,
                                      int label_size, int area) {
  const index sample = inside(drawn[blockIdx.x], samples);
  const PIXEL* from = inputs + (size_t)sample * size;
  float* to = batch + (size_t)blockIdx.x * size;
  for (int j = blockIdx.y * blockDim.x + threadIdx.x; j < size; j += gridDim.y * blockDim.x)
    to[j] = __fdiv_rn(__fsub_rn(from[j], mean[j / area]), std[j / area]);
  if (blockIdx.y > 0) return;
  for (int k = threadIdx.x; k < label_size; k += blockDim.x)
    batch_labels[(size_t)blockIdx.x * label_size + k] = labels[(size_t)sample * label_size + k];
}

// The last block counts on: by then all others know where they are.
extern "C" __global__ void turn_to_next(index* next, const index* jobs, index* job, const WORD* models, WORD* base,
                                        unsigned* counter, int rounds, int width, int places, int size) {
  const index now = inside(*next, rounds);
  const index* here = jobs + (size_t)now * width;
  copy(models + (size_t)inside(here[width - 2], places) * size, base, size);
  copy(here, job, width);
  if (is_last_block(counter) && threadIdx.x == 0) *next = now + 1;
}

// Torch's CUDA code for `add` with a factor is compiled into one rounding, so this has one as well.
extern "C" __global__ void move_model(float* weights, const float* direction, const flag* ready, float* models,
                                      const index* to, double factor, int places, int size) {
  const bool moves = *ready;
  float* lent = models + (size_t)inside(*to, places) * size;
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < size; j += gridDim.x * blockDim.x) {
    const float before = weights[j], after = moves ? __fmaf_rn((float)factor, direction[j], before) : before;
    weights[j] = lent[j] = after;
  }
}
