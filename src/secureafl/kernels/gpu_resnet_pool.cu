// The end of ResNet-20's last block and the mean over each image, there and back, compiled after `gpu_tensor_cores.cu`
// and `gpu_tiles.cu`.

#define CHANNELS 64
#define CHUNKS (CHANNELS / 8)
#define STEP (THREADS / CHUNKS)  // pixels that a block takes at a time

// Adds up eight sums of each thread over those that have the same channels, in the order of their numbers.
template <typename Use>
__device__ void add_threads(const float* values, float (*shared)[CHANNELS], Use use) {
  __syncthreads();
#pragma unroll
  for (int c = 0; c < 8; c++) shared[threadIdx.x / CHUNKS][threadIdx.x % CHUNKS * 8 + c] = values[c];
  __syncthreads();
  if (threadIdx.x >= CHANNELS) return;
  float total = 0;
  for (int k = 0; k < STEP; k++) total += shared[k][threadIdx.x];
  use(threadIdx.x, total);
}

// Normalises, adds the shortcut, passes the ReLU and takes the mean: a block for each image.
extern "C" __global__ void __launch_bounds__(THREADS) pool(
    const Number* inputs, const float* partial, float* kept, float* moved, const float* weights, const Number* block,
    Number* active, float* features, int blocks, int norm, int running, int pixels, double momentum, double epsilon) {
  __shared__ __align__(16) float normal[2][CHANNELS];
  __shared__ float shared[STEP][CHANNELS];
  const int channel = threadIdx.x % CHUNKS * 8;
  find_normalisation<CHANNELS>(
      {partial, kept, moved, blocks, norm, running, (float)momentum, (float)epsilon}, weights, normal);
  float total[8] = {}, factor[8], shift[8];
  load_floats<8>(factor, normal[0] + channel), load_floats<8>(shift, normal[1] + channel);
#pragma unroll 2
  for (int pixel = threadIdx.x / CHUNKS; pixel < pixels; pixel += STEP) {
    const int at = (blockIdx.x * pixels + pixel) * CHANNELS + channel;
    Run<8> found, added;
    found.load(inputs + at), added.load(block + at);
    float values[8];
#pragma unroll
    for (int c = 0; c < 8; c++) values[c] = relu(normalised(found.get(c), factor[c], shift[c]) + added.get(c));
    found.set(values);
    found.store(active + at);
#pragma unroll
    for (int c = 0; c < 8; c++) total[c] += found.get(c);
  }
  add_threads(total, shared, [&](int c, float sum) { features[blockIdx.x * CHANNELS + c] = sum / pixels; });
}

// The gradient before the last ReLU, with the two sums that the normalisation before needs.
extern "C" __global__ void __launch_bounds__(THREADS) pool_gradient(
    const float* features, const Number* active, const Number* outputs, const float* kept, Number* found, float* sums,
    int images, int pixels) {
  __shared__ float shared[STEP][CHANNELS];
  const int channel = threadIdx.x % CHUNKS * 8;
  float plain[8] = {}, product[8] = {}, mean[8], inverse[8];
#pragma unroll
  for (int c = 0; c < 8; c++) mean[c] = kept[channel + c], inverse[c] = kept[CHANNELS + channel + c];
  for (int image = blockIdx.x; image < images; image += gridDim.x) {
    float given[8];
#pragma unroll
    for (int c = 0; c < 8; c++) given[c] = features[image * CHANNELS + channel + c] / pixels;
#pragma unroll 2
    for (int pixel = threadIdx.x / CHUNKS; pixel < pixels; pixel += STEP) {
      const int at = (image * pixels + pixel) * CHANNELS + channel;
      Run<8> passed, output;
      passed.load(active + at), output.load(outputs + at);
      float values[8];
#pragma unroll
      for (int c = 0; c < 8; c++) values[c] = passed.get(c) <= 0 ? 0 : given[c];
      passed.set(values);
      passed.store(found + at);
#pragma unroll
      for (int c = 0; c < 8; c++) {
        plain[c] += passed.get(c);
        product[c] += passed.get(c) * ((output.get(c) - mean[c]) * inverse[c]);
      }
    }
  }
  float* row = sums + blockIdx.x * 2 * CHANNELS;
  add_threads(plain, shared, [&](int c, float sum) { row[c] = sum; });
  add_threads(product, shared, [&](int c, float sum) { row[CHANNELS + c] = sum; });
}
