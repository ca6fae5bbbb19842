// Gradient of the paper's CNN on a batch, on a GPU: the kernels behind `kernels.gpu_cnn`, compiled
// after `gpu_sums.cu`.
//
// Two 3 x 3 convolutions, each with ReLU and 2 x 2 max pooling, a hidden layer, a softmax. Of a
// convolution only the pooled values are stored, with a byte that says which of the four was largest:
// the others get no gradient, so the backward pass has a quarter of the work.
//
// Sums are added up in a fixed order, so every run gives the same bits. NaN stays NaN.
// HIDDEN and the other sizes are defined by `kernels.gpu_cnn`.

#define PIXELS (SIDE * SIDE)
#define SIDE_1 ((SIDE - 2) / 2)  // side of an image after the first pooling
#define AREA_1 (SIDE_1 * SIDE_1)
#define SIZE_1 (CHANNELS_1 * AREA_1)
#define SIDE_2 ((SIDE_1 - 2) / 2)  // side after the second
#define AREA_2 (SIDE_2 * SIDE_2)
#define SIZE_2 (CHANNELS_2 * AREA_2)
#define BLOCK_CHANNELS (FORWARD_THREADS / 32 * WARP_CHANNELS)  // of the second layer, in `convolutions_forward`

// Of `convolution_2_backward`: a warp for every line; slices of the channels; entries of a warp's list.
#define WARPS (BACKWARD_THREADS / 32)
#define SLICES ((CHANNELS_2 + WARPS - 1) / WARPS)
#define HALF (CHANNELS_2 / 2)
#define MOST_ENTRIES (2 * HALF + 4)

// Offsets of the parameters in the flat vector.
#define PATCH (CHANNELS_1 * 9)
#define BIAS_1 (CHANNELS_1 * 9)
#define WEIGHT_2 (BIAS_1 + CHANNELS_1)
#define LAYER_2 (CHANNELS_2 * PATCH + CHANNELS_2)
#define BIAS_2 (WEIGHT_2 + CHANNELS_2 * PATCH)
#define WEIGHT_3 (BIAS_2 + CHANNELS_2)
#define BIAS_3 (WEIGHT_3 + HIDDEN * SIZE_2)
#define WEIGHT_4 (BIAS_3 + HIDDEN)
#define BIAS_4 (WEIGHT_4 + CLASSES * HIDDEN)

// ReLU and max pooling: the largest of four, if above 0, and which one it was.
__device__ float relu_pool(const float* four, flag* argmax) {
  float best = four[0];
  int at = 0;
#pragma unroll
  for (int k = 1; k < 4; k++)
    if (four[k] > best || four[k] != four[k]) best = four[k], at = k;
  *argmax = at;
  return best <= 0 ? 0 : best;
}

// Adds a 3 x 3 convolution at the four places of a 4 x 4 patch.
__device__ void convolve(const float* patch, const float* weights, float* four) {
#pragma unroll
  for (int k = 0; k < 9; k++) {
    const float weight = weights[k];
#pragma unroll
    for (int place = 0; place < 4; place++)
      four[place] += weight * patch[(place / 2 + k / 3) * 4 + place % 2 + k % 3];
  }
}

__device__ void read_patch(const float* image, int side, float* patch) {
#pragma unroll
  for (int k = 0; k < 16; k++) patch[k] = image[k / 4 * side + k % 4];
}

// Forward pass of both convolutions for an image; a warp computes WARP_CHANNELS channels of the second, a lane
// one place.
extern "C" __global__ void __launch_bounds__(FORWARD_THREADS) convolutions_forward(
    const float* weights, const float* inputs, float* pooled_1, flag* argmax_1, float* pooled_2, flag* argmax_2) {
  __shared__ float image[PIXELS], first[SIZE_1], part[BLOCK_CHANNELS * CHUNK * 9];
  const int i = blockIdx.x, thread = threadIdx.x, lane = thread % 32;
  for (int k = thread; k < PIXELS; k += FORWARD_THREADS) image[k] = inputs[(size_t)i * PIXELS + k];
  __syncthreads();
  for (int k = thread; k < SIZE_1; k += FORWARD_THREADS) {
    const int channel = k / AREA_1, y = k % AREA_1 / SIDE_1, x = k % SIDE_1;
    const float bias = weights[BIAS_1 + channel];
    float patch[16], four[4] = {bias, bias, bias, bias};
    read_patch(image + 2 * y * SIDE + 2 * x, SIDE, patch);
    convolve(patch, weights + channel * 9, four);
    flag argmax;
    first[k] = relu_pool(four, &argmax);
    if (blockIdx.y == 0) pooled_1[(size_t)i * SIZE_1 + k] = first[k], argmax_1[(size_t)i * SIZE_1 + k] = argmax;
  }
  __syncthreads();
  const int own = thread / 32 * WARP_CHANNELS, from = blockIdx.y * BLOCK_CHANNELS + own;
  const int place = min(lane, AREA_2 - 1);
  const float* corner = first + 2 * (place / SIDE_2) * SIDE_1 + 2 * (place % SIDE_2);
  float sums[WARP_CHANNELS][4];
#pragma unroll
  for (int u = 0; u < WARP_CHANNELS; u++)
#pragma unroll
    for (int k = 0; k < 4; k++) sums[u][k] = weights[BIAS_2 + from + u];
  for (int start = 0; start < CHANNELS_1; start += CHUNK) {
    __syncthreads();
    for (int k = thread; k < BLOCK_CHANNELS * CHUNK * 9; k += FORWARD_THREADS)
      part[k] = weights[WEIGHT_2 + (blockIdx.y * BLOCK_CHANNELS + k / (CHUNK * 9)) * PATCH + start * 9 +
                        k % (CHUNK * 9)];
    __syncthreads();
    for (int channel = 0; channel < CHUNK; channel++) {
      float patch[16];
      read_patch(corner + (start + channel) * AREA_1, SIDE_1, patch);
#pragma unroll
      for (int u = 0; u < WARP_CHANNELS; u++) convolve(patch, part + ((own + u) * CHUNK + channel) * 9, sums[u]);
    }
  }
  if (lane >= AREA_2) return;
#pragma unroll
  for (int u = 0; u < WARP_CHANNELS; u++) {
    const size_t at = (size_t)i * SIZE_2 + (from + u) * AREA_2 + lane;
    pooled_2[at] = relu_pool(sums[u], argmax_2 + at);
  }
}

// Forward pass of the hidden layer: a block computes FORWARD_UNITS units of all images, a warp four images at a
// time.
extern "C" __global__ void __launch_bounds__(256) hidden_forward(const float* weights, const float* pooled_2,
                                                                 float* hidden, int images) {
  __shared__ float rows[FORWARD_UNITS][SIZE_2];
  const int from = blockIdx.x * FORWARD_UNITS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int k = threadIdx.x; k < FORWARD_UNITS * SIZE_2; k += 256)
    rows[k / SIZE_2][k % SIZE_2] =
        weights[WEIGHT_3 + (size_t)min(from + k / SIZE_2, HIDDEN - 1) * SIZE_2 + k % SIZE_2];
  __syncthreads();
  for (int start = 4 * warp; start < images; start += 32) {
    float sums[4][FORWARD_UNITS] = {{0}};
    for (int k = lane; k < SIZE_2; k += 32)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float value = pooled_2[(size_t)min(start + q, images - 1) * SIZE_2 + k];
#pragma unroll
        for (int u = 0; u < FORWARD_UNITS; u++) sums[q][u] += value * rows[u][k];
      }
#pragma unroll
    for (int k = 0; k < 4 * FORWARD_UNITS; k++) {
      const int i = start + k / FORWARD_UNITS, unit = from + k % FORWARD_UNITS;
      const float sum = warp_sum(sums[k / FORWARD_UNITS][k % FORWARD_UNITS]);
      const float value = sum + weights[BIAS_3 + min(unit, HIDDEN - 1)];
      if (lane == 0 && i < images && unit < HIDDEN) hidden[i * HIDDEN + unit] = value <= 0 ? 0 : value;
    }
  }
}

// Gradient of the mean cross entropy with respect to an image's logits: softmax minus the label.
__device__ void cross_entropy_gradient(const float* logits, index label, int images, float* logit_gradient) {
  float top = logits[0], total = 0;
  for (int k = 1; k < CLASSES; k++) top = fmaxf(top, logits[k]);
  for (int k = 0; k < CLASSES; k++) total += expf(logits[k] - top);
  for (int k = 0; k < CLASSES; k++) logit_gradient[k] = (expf(logits[k] - top) / total - (k == label)) / images;
}

// Output layer with softmax cross entropy, forward and backward. One block.
extern "C" __global__ void __launch_bounds__(1024) output_layer(const float* weights, const float* hidden,
                                                                const index* labels, float* gradient,
                                                                float* hidden_gradient, int images) {
  extern __shared__ float logit_gradient[];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const float* last = weights + WEIGHT_4;
  for (int i = warp; i < images; i += 32) {
    float logits[CLASSES] = {0};
    for (int j = lane; j < HIDDEN; j += 32)
#pragma unroll
      for (int k = 0; k < CLASSES; k++) logits[k] += hidden[i * HIDDEN + j] * last[k * HIDDEN + j];
#pragma unroll
    for (int k = 0; k < CLASSES; k++) logits[k] = warp_sum(logits[k]) + weights[BIAS_4 + k];
    if (lane == 0) cross_entropy_gradient(logits, labels[i], images, logit_gradient + i * CLASSES);
  }
  __syncthreads();
  for (int at = thread; at < CLASSES * (HIDDEN + 1); at += 1024) {
    const int j = at < CLASSES * HIDDEN ? at % HIDDEN : -1, k = j < 0 ? at - CLASSES * HIDDEN : at / HIDDEN;
    float sum = 0;
    for (int i = 0; i < images; i++) sum += logit_gradient[i * CLASSES + k] * (j < 0 ? 1 : hidden[i * HIDDEN + j]);
    gradient[WEIGHT_4 + at] = sum;
  }
  for (int at = thread; at < images * HIDDEN; at += 1024) {
    float sum = 0;
    for (int k = 0; k < CLASSES; k++)
      sum += logit_gradient[at / HIDDEN * CLASSES + k] * last[k * HIDDEN + at % HIDDEN];
    hidden_gradient[at] = hidden[at] == 0 ? 0 : sum;
  }
}

// Backward pass of the hidden layer. The first blocks of a column compute the weight gradient of BLOCK_UNITS units
// each, the others the input gradient of BLOCK_IMAGES images; a thread keeps to one input of the layer.
extern "C" __global__ void __launch_bounds__(128) hidden_backward(const float* weights, const float* pooled_2,
                                                                  const float* hidden_gradient, float* gradient,
                                                                  float* gradient_2, int images) {
  __shared__ float part[64 * BLOCK_IMAGES];
  const int thread = threadIdx.x, at = blockIdx.x * 128 + thread, column = min(at, SIZE_2 - 1);
  const int units = (HIDDEN + BLOCK_UNITS - 1) / BLOCK_UNITS;
  if (blockIdx.y < units) {
    const int from = blockIdx.y * BLOCK_UNITS;
    float sums[BLOCK_UNITS] = {0}, bias = 0;
    for (int start = 0; start < images; start += 32) {
      __syncthreads();
      for (int k = thread; k < 32 * BLOCK_UNITS; k += 128) {
        const int i = start + k / BLOCK_UNITS, unit = from + k % BLOCK_UNITS;
        part[k] = i < images && unit < HIDDEN ? hidden_gradient[i * HIDDEN + unit] : 0;
      }
      __syncthreads();
      for (int i = 0; i < min(images - start, 32); i++) {
        const float value = pooled_2[(size_t)(start + i) * SIZE_2 + column];
#pragma unroll
        for (int u = 0; u < BLOCK_UNITS; u++) sums[u] += value * part[i * BLOCK_UNITS + u];
        if (at < BLOCK_UNITS) bias += part[i * BLOCK_UNITS + at];
      }
    }
#pragma unroll
    for (int u = 0; u < BLOCK_UNITS; u++)
      if (at < SIZE_2 && from + u < HIDDEN) gradient[WEIGHT_3 + (size_t)(from + u) * SIZE_2 + at] = sums[u];
    if (at < BLOCK_UNITS && from + at < HIDDEN) gradient[BIAS_3 + from + at] = bias;
    return;
  }
  const int from = (blockIdx.y - units) * BLOCK_IMAGES;
  float sums[BLOCK_IMAGES] = {0};
  for (int start = 0; start < HIDDEN; start += 64) {
    __syncthreads();
    for (int k = thread; k < 64 * BLOCK_IMAGES; k += 128) {
      const int i = from + k % BLOCK_IMAGES, unit = start + k / BLOCK_IMAGES;
      part[k] = i < images && unit < HIDDEN ? hidden_gradient[i * HIDDEN + unit] : 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < min(HIDDEN - start, 64); j++) {
      const float weight = weights[WEIGHT_3 + (size_t)(start + j) * SIZE_2 + column];
#pragma unroll
      for (int u = 0; u < BLOCK_IMAGES; u++) sums[u] += weight * part[j * BLOCK_IMAGES + u];
    }
  }
#pragma unroll
  for (int u = 0; u < BLOCK_IMAGES; u++) {
    const size_t place = (size_t)(from + u) * SIZE_2 + at;
    if (at < SIZE_2 && from + u < images) gradient_2[place] = pooled_2[place] == 0 ? 0 : sums[u];
  }
}

// A place that gets a gradient, and where what it is multiplied by starts.
struct Entry {
  float gradient;
  int at;
};

// Appends the entries of those lanes of a warp that have one, in their order; gives the new length.
__device__ int append(Entry* list, int length, bool has_one, Entry entry) {
  const unsigned lanes = __ballot_sync(FULL, has_one), before = (1u << threadIdx.x % 32) - 1;
  if (has_one) list[length + __popc(lanes & before)] = entry;
  return length + __popc(lanes);
}

// Calls `use` for every entry of a warp's list; four at a time, of which the last may be empty ones.
template <typename Use>
__device__ void for_each_entry(Entry* list, int length, Use use) {
  const int lane = threadIdx.x % 32;
  if (lane < 3) list[length + lane] = {0, 0};
  __syncwarp();
  for (int start = 0; start < length; start += 4)
#pragma unroll
    for (int k = 0; k < 4; k++) use(list[start + k]);
  __syncwarp();
}

// Weight gradient of the second convolution for some of its channels and a group of images: a warp computes a
// channel, a lane the weights for one of the first. `convolution_1_backward` adds up the groups.
__device__ void weight_gradient_2(float* room, Entry* list, const float* pooled_1, const float* gradient_2,
                                  const flag* argmax, float* parts, int images) {
  const int slice = blockIdx.x % SLICES, group = blockIdx.x / SLICES, each = (images + GROUPS - 1) / GROUPS;
  const int lane = threadIdx.x % 32, channel = slice * WARPS + threadIdx.x / 32;
  const int place = min(lane, AREA_2 - 1), y = 2 * (place / SIDE_2), x = 2 * (place % SIDE_2);
  const float* image = room + min(lane, CHANNELS_1 - 1) * AREA_1;
  float sums[9] = {0}, bias = 0;
  for (int i = group * each; i < min(images, (group + 1) * each); i++) {
    __syncthreads();
    for (int at = threadIdx.x; at < SIZE_1; at += BACKWARD_THREADS) room[at] = pooled_1[(size_t)i * SIZE_1 + at];
    __syncthreads();
    if (channel >= CHANNELS_2) continue;
    const size_t at = (size_t)i * SIZE_2 + channel * AREA_2 + place;
    const float own = lane < AREA_2 ? gradient_2[at] : 0;
    const int length = append(list, 0, own != 0, {own, (y + argmax[at] / 2) * SIDE_1 + x + argmax[at] % 2});
    for_each_entry(list, length, [&](Entry entry) {
      bias += entry.gradient;
#pragma unroll
      for (int k = 0; k < 9; k++) sums[k] += entry.gradient * image[entry.at + k / 3 * SIDE_1 + k % 3];
    });
  }
  if (channel >= CHANNELS_2) return;
  float* part = parts + (size_t)group * LAYER_2;
#pragma unroll
  for (int k = 0; k < 9; k++)
    if (lane < CHANNELS_1) part[channel * PATCH + lane * 9 + k] = sums[k];
  if (lane == 0) part[CHANNELS_2 * PATCH + channel] = bias;
}

// Gradient of an image after its first pooling, as half of the channels of the second layer have it: a warp computes
// a line, a lane a channel. From left to right: a place reaches the four columns that are in `columns`.
__device__ void input_gradient_2(float* room, Entry* list, const float* weights, const float* gradient_2,
                                 const flag* argmax, float* gradient_1, int images) {
  __shared__ float local_gradient[HALF * AREA_2];
  __shared__ flag chosen[HALF * AREA_2];
  const int i = (blockIdx.x - SLICES * GROUPS) / 2, half = (blockIdx.x - SLICES * GROUPS) % 2;
  const int thread = threadIdx.x, lane = thread % 32, line = thread / 32;
  const float* own = room + min(lane, CHANNELS_1 - 1) * 9;
  for (int k = thread; k < HALF * PATCH; k += BACKWARD_THREADS) room[k] = weights[WEIGHT_2 + half * HALF * PATCH + k];
  for (int k = thread; k < HALF * AREA_2; k += BACKWARD_THREADS) {
    const size_t at = (size_t)i * SIZE_2 + half * HALF * AREA_2 + k;
    local_gradient[k] = gradient_2[at], chosen[k] = argmax[at];
  }
  __syncthreads();
  float* out = gradient_1 + (size_t)(half * images + i) * SIZE_1 + lane * AREA_1 + line * SIDE_1;
  float columns[4] = {0};
  for (int place = 0; place < SIDE_2; place++) {
    int lengths[2] = {0, 0};
    for (int start = 0; start < 2 * HALF; start += 32) {  // both lines of places that reach this line
      const int other = (start + lane) / 2, above = line / 2 - (start + lane) % 2;
      const bool there = other < HALF && above >= 0 && above < SIDE_2;
      const int at = there ? other * AREA_2 + above * SIDE_2 + place : 0, row = line - 2 * above - chosen[at] / 2;
      const Entry entry = {local_gradient[at], other * PATCH + 3 * row};
      const bool reaches = there && entry.gradient != 0 && row >= 0 && row < 3;
#pragma unroll
      for (int right = 0; right < 2; right++)
        lengths[right] = append(list + right * MOST_ENTRIES, lengths[right], reaches && chosen[at] % 2 == right, entry);
    }
#pragma unroll
    for (int right = 0; right < 2; right++)
      for_each_entry(list + right * MOST_ENTRIES, lengths[right], [&](Entry entry) {
#pragma unroll
        for (int k = 0; k < 3; k++) columns[right + k] += entry.gradient * own[entry.at + k];
      });
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (lane < CHANNELS_1) out[2 * place + k] = columns[k];
      columns[k] = columns[k + 2], columns[k + 2] = 0;
    }
  }
  for (int x = 2 * SIDE_2; x < SIDE_1; x++)
    if (lane < CHANNELS_1) out[x] = x < 2 * SIDE_2 + 2 ? columns[x - 2 * SIDE_2] : 0;
}

// Backward pass of the second convolution: weight gradients in the first blocks, input gradients in the others.
extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS) convolution_2_backward(
    const float* weights, const float* pooled_1, const float* gradient_2, const flag* argmax, float* parts,
    float* gradient_1, int images) {
  __shared__ float room[HALF * PATCH > SIZE_1 ? HALF * PATCH : SIZE_1];
  __shared__ Entry lists[WARPS][2 * MOST_ENTRIES];
  Entry* list = lists[threadIdx.x / 32];
  if (blockIdx.x < SLICES * GROUPS)
    weight_gradient_2(room, list, pooled_1, gradient_2, argmax, parts, images);
  else
    input_gradient_2(room, list, weights, gradient_2, argmax, gradient_1, images);
}

// Weight gradient of the first convolution, one block per channel; further blocks add up that of the second.
extern "C" __global__ void __launch_bounds__(1024) convolution_1_backward(
    const float* inputs, const float* pooled_1, const float* gradient_1, const flag* argmax, const float* parts,
    float* gradient, int images) {
  __shared__ float partial[32][10];
  const int thread = threadIdx.x, channel = blockIdx.x;
  if (channel >= CHANNELS_1) {
    const int at = (channel - CHANNELS_1) * 1024 + thread;
    if (at >= LAYER_2) return;
    float sum = 0;
    for (int group = 0; group < GROUPS; group++) sum += parts[(size_t)group * LAYER_2 + at];
    gradient[WEIGHT_2 + at] = sum;
    return;
  }
  float sums[10] = {0};  // of nine weights and the bias
  for (int k = thread; k < images * AREA_1; k += 1024) {
    const int i = k / AREA_1, place = k % AREA_1;
    const size_t at = (size_t)i * SIZE_1 + channel * AREA_1 + place;
    const float local_gradient = gradient_1[at] + gradient_1[(size_t)images * SIZE_1 + at];
    if (local_gradient == 0 || pooled_1[at] == 0) continue;
    const int y = 2 * (place / SIDE_1) + argmax[at] / 2, x = 2 * (place % SIDE_1) + argmax[at] % 2;
    const float* corner = inputs + (size_t)i * PIXELS + y * SIDE + x;
#pragma unroll
    for (int w = 0; w < 9; w++) sums[w] += local_gradient * corner[w / 3 * SIDE + w % 3];
    sums[9] += local_gradient;
  }
#pragma unroll
  for (int w = 0; w < 10; w++) {
    const float sum = warp_sum(sums[w]);
    if (thread % 32 == 0) partial[thread / 32][w] = sum;
  }
  __syncthreads();
  if (thread >= 10) return;
  float sum = 0;
  for (int warp = 0; warp < 32; warp++) sum += partial[warp][thread];
  gradient[thread < 9 ? channel * 9 + thread : BIAS_1 + channel] = sum;
}
