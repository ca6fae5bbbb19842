// Gradient of the paper's CNN on a batch, on a GPU: the kernels behind `kernels.gpu_cnn`, compiled
// after `gpu_sums.cu`.
//
// Two convolutions of 3 x 3, each with ReLU and the largest of 2 x 2, a hidden layer, a softmax. A
// layer's values exist only after the pooling, with a byte that says which of the four was largest:
// the others get no gradient, so the way back has a quarter of the work.
//
// Sums are added up in a fixed order, so every run gives the same bits. NaN stays NaN.
// HIDDEN, and the rest of the form: `kernels.gpu_cnn`.

#define PIXELS (SIDE * SIDE)
#define WIDE ((SIDE - 2) / 2)  // of an image after the first pooling
#define WIDES (WIDE * WIDE)
#define ONES (FIRST * WIDES)
#define NARROW ((WIDE - 2) / 2)  // after the second
#define NARROWS (NARROW * NARROW)
#define TWOS (SECOND * NARROWS)
#define MADE (SEE / 32 * AT_ONCE)  // channels of the second layer that a block of `see` makes

// Where things lie in the flat vector.
#define PATCH (FIRST * 9)
#define BIAS_1 (FIRST * 9)
#define WEIGHT_2 (BIAS_1 + FIRST)
#define LAYER_2 (SECOND * PATCH + SECOND)
#define BIAS_2 (WEIGHT_2 + SECOND * PATCH)
#define WEIGHT_3 (BIAS_2 + SECOND)
#define BIAS_3 (WEIGHT_3 + HIDDEN * TWOS)
#define WEIGHT_4 (BIAS_3 + HIDDEN)
#define BIAS_4 (WEIGHT_4 + CLASSES * HIDDEN)

// The largest of four, if above 0, and which one it was.
__device__ float pooled(const float* four, flag* which) {
  float best = four[0];
  int at = 0;
#pragma unroll
  for (int k = 1; k < 4; k++)
    if (four[k] > best || four[k] != four[k]) best = four[k], at = k;
  *which = at;
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

// Both convolutions of an image; a warp makes AT_ONCE channels of the second, a lane one place.
extern "C" __global__ void __launch_bounds__(SEE) see(const float* weights, const float* inputs, float* ones,
                                                      flag* which_ones, float* twos, flag* which_twos) {
  __shared__ float image[PIXELS], first[ONES], part[MADE * PART * 9];
  const int i = blockIdx.x, thread = threadIdx.x, lane = thread % 32;
  for (int k = thread; k < PIXELS; k += SEE) image[k] = inputs[(size_t)i * PIXELS + k];
  __syncthreads();
  for (int k = thread; k < ONES; k += SEE) {
    const int channel = k / WIDES, y = k % WIDES / WIDE, x = k % WIDE;
    const float bias = weights[BIAS_1 + channel];
    float patch[16], four[4] = {bias, bias, bias, bias};
    read_patch(image + 2 * y * SIDE + 2 * x, SIDE, patch);
    convolve(patch, weights + channel * 9, four);
    flag which;
    first[k] = pooled(four, &which);
    if (blockIdx.y == 0) ones[(size_t)i * ONES + k] = first[k], which_ones[(size_t)i * ONES + k] = which;
  }
  __syncthreads();
  const int own = thread / 32 * AT_ONCE, from = blockIdx.y * MADE + own, place = min(lane, NARROWS - 1);
  const float* corner = first + 2 * (place / NARROW) * WIDE + 2 * (place % NARROW);
  float sums[AT_ONCE][4];
#pragma unroll
  for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
    for (int k = 0; k < 4; k++) sums[u][k] = weights[BIAS_2 + from + u];
  for (int start = 0; start < FIRST; start += PART) {
    __syncthreads();
    for (int k = thread; k < MADE * PART * 9; k += SEE)
      part[k] = weights[WEIGHT_2 + (blockIdx.y * MADE + k / (PART * 9)) * PATCH + start * 9 + k % (PART * 9)];
    __syncthreads();
    for (int channel = 0; channel < PART; channel++) {
      float patch[16];
      read_patch(corner + (start + channel) * WIDES, WIDE, patch);
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) convolve(patch, part + ((own + u) * PART + channel) * 9, sums[u]);
    }
  }
  if (lane >= NARROWS) return;
#pragma unroll
  for (int u = 0; u < AT_ONCE; u++) {
    const size_t at = (size_t)i * TWOS + (from + u) * NARROWS + lane;
    twos[at] = pooled(sums[u], which_twos + at);
  }
}

// The hidden layer: a block makes HIDE units of all images, a warp four images at a time.
extern "C" __global__ void __launch_bounds__(256) hide(const float* weights, const float* twos, float* hidden,
                                                       int images) {
  __shared__ float rows[HIDE][TWOS];
  const int from = blockIdx.x * HIDE, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int k = threadIdx.x; k < HIDE * TWOS; k += 256)
    rows[k / TWOS][k % TWOS] = weights[WEIGHT_3 + (size_t)min(from + k / TWOS, HIDDEN - 1) * TWOS + k % TWOS];
  __syncthreads();
  for (int start = 4 * warp; start < images; start += 32) {
    float sums[4][HIDE] = {{0}};
    for (int k = lane; k < TWOS; k += 32)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float value = twos[(size_t)min(start + q, images - 1) * TWOS + k];
#pragma unroll
        for (int u = 0; u < HIDE; u++) sums[q][u] += value * rows[u][k];
      }
#pragma unroll
    for (int k = 0; k < 4 * HIDE; k++) {
      const int i = start + k / HIDE, unit = from + k % HIDE;
      const float value = warp_sum(sums[k / HIDE][k % HIDE]) + weights[BIAS_3 + min(unit, HIDDEN - 1)];
      if (lane == 0 && i < images && unit < HIDDEN) hidden[i * HIDDEN + unit] = value <= 0 ? 0 : value;
    }
  }
}

// What the loss changes with every score of an image: softmax less the label, as part of the mean.
__device__ void slopes_of(const float* scores, index label, int images, float* slopes) {
  float top = scores[0], total = 0;
  for (int k = 1; k < CLASSES; k++) top = fmaxf(top, scores[k]);
  for (int k = 0; k < CLASSES; k++) total += expf(scores[k] - top);
  for (int k = 0; k < CLASSES; k++) slopes[k] = (expf(scores[k] - top) / total - (k == label)) / images;
}

// The last layer, there and back. One block.
extern "C" __global__ void __launch_bounds__(1024) answer(const float* weights, const float* hidden,
                                                          const index* labels, float* gradient,
                                                          float* hidden_slopes, int images) {
  extern __shared__ float slopes[];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const float* last = weights + WEIGHT_4;
  for (int i = warp; i < images; i += 32) {
    float scores[CLASSES] = {0};
    for (int j = lane; j < HIDDEN; j += 32)
#pragma unroll
      for (int k = 0; k < CLASSES; k++) scores[k] += hidden[i * HIDDEN + j] * last[k * HIDDEN + j];
#pragma unroll
    for (int k = 0; k < CLASSES; k++) scores[k] = warp_sum(scores[k]) + weights[BIAS_4 + k];
    if (lane == 0) slopes_of(scores, labels[i], images, slopes + i * CLASSES);
  }
  __syncthreads();
  for (int at = thread; at < CLASSES * (HIDDEN + 1); at += 1024) {
    const int j = at < CLASSES * HIDDEN ? at % HIDDEN : -1, k = j < 0 ? at - CLASSES * HIDDEN : at / HIDDEN;
    float sum = 0;
    for (int i = 0; i < images; i++) sum += slopes[i * CLASSES + k] * (j < 0 ? 1 : hidden[i * HIDDEN + j]);
    gradient[WEIGHT_4 + at] = sum;
  }
  for (int at = thread; at < images * HIDDEN; at += 1024) {
    float sum = 0;
    for (int k = 0; k < CLASSES; k++) sum += slopes[at / HIDDEN * CLASSES + k] * last[k * HIDDEN + at % HIDDEN];
    hidden_slopes[at] = hidden[at] == 0 ? 0 : sum;
  }
}

// Back through the hidden layer. The first blocks of a column make the gradient of UNITS units each,
// the others the slopes of IMAGES images; a thread stays with one value below.
extern "C" __global__ void __launch_bounds__(128) back_to_twos(const float* weights, const float* twos,
                                                               const float* hidden_slopes, float* gradient,
                                                               float* slopes, int images) {
  __shared__ float part[64 * IMAGES];
  const int thread = threadIdx.x, at = blockIdx.x * 128 + thread, column = min(at, TWOS - 1);
  const int units = (HIDDEN + UNITS - 1) / UNITS;
  if (blockIdx.y < units) {
    const int from = blockIdx.y * UNITS;
    float sums[UNITS] = {0}, bias = 0;
    for (int start = 0; start < images; start += 32) {
      __syncthreads();
      for (int k = thread; k < 32 * UNITS; k += 128) {
        const int i = start + k / UNITS, unit = from + k % UNITS;
        part[k] = i < images && unit < HIDDEN ? hidden_slopes[i * HIDDEN + unit] : 0;
      }
      __syncthreads();
      for (int i = 0; i < min(images - start, 32); i++) {
        const float value = twos[(size_t)(start + i) * TWOS + column];
#pragma unroll
        for (int u = 0; u < UNITS; u++) sums[u] += value * part[i * UNITS + u];
        if (at < UNITS) bias += part[i * UNITS + at];
      }
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++)
      if (at < TWOS && from + u < HIDDEN) gradient[WEIGHT_3 + (size_t)(from + u) * TWOS + at] = sums[u];
    if (at < UNITS && from + at < HIDDEN) gradient[BIAS_3 + from + at] = bias;
    return;
  }
  const int from = (blockIdx.y - units) * IMAGES;
  float sums[IMAGES] = {0};
  for (int start = 0; start < HIDDEN; start += 64) {
    __syncthreads();
    for (int k = thread; k < 64 * IMAGES; k += 128) {
      const int i = from + k % IMAGES, unit = start + k / IMAGES;
      part[k] = i < images && unit < HIDDEN ? hidden_slopes[i * HIDDEN + unit] : 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int j = 0; j < min(HIDDEN - start, 64); j++) {
      const float weight = weights[WEIGHT_3 + (size_t)(start + j) * TWOS + column];
#pragma unroll
      for (int u = 0; u < IMAGES; u++) sums[u] += weight * part[j * IMAGES + u];
    }
  }
#pragma unroll
  for (int u = 0; u < IMAGES; u++) {
    const size_t place = (size_t)(from + u) * TWOS + at;
    if (at < TWOS && from + u < images) slopes[place] = twos[place] == 0 ? 0 : sums[u];
  }
}

// The second layer's gradient, of a pair of its channels and a group of images; for `finish` to add up.
__device__ void layer_2(float* room, const float* ones, const float* slopes, const flag* which, float* parts,
                        int images) {
  __shared__ float slope[2 * NARROWS];
  __shared__ int place[2 * NARROWS];
  const int thread = threadIdx.x, pair = blockIdx.x % (SECOND / 2), group = blockIdx.x / (SECOND / 2);
  const int each = (images + GROUPS - 1) / GROUPS, k = thread % 9;
  const float* corner = room + min(thread / 9, FIRST - 1) * WIDES + k / 3 * WIDE + k % 3;
  float sums[2] = {0, 0};
  for (int i = group * each; i < min(images, (group + 1) * each); i++) {
    __syncthreads();
    for (int at = thread; at < ONES; at += BACK) room[at] = ones[(size_t)i * ONES + at];
    if (thread < 2 * NARROWS) {
      const size_t at = (size_t)i * TWOS + pair * 2 * NARROWS + thread;
      const int y = 2 * (thread % NARROWS / NARROW) + which[at] / 2, x = 2 * (thread % NARROW) + which[at] % 2;
      slope[thread] = slopes[at], place[thread] = y * WIDE + x;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < 2 * NARROWS; p++) sums[p / NARROWS] += slope[p] * (thread == PATCH ? 1 : corner[place[p]]);
  }
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const int channel = 2 * pair + u;
    if (thread <= PATCH)
      parts[(size_t)group * LAYER_2 + (thread < PATCH ? channel * PATCH + thread : SECOND * PATCH + channel)] = sums[u];
  }
}

// Slopes of an image after its first pooling: a warp makes a line of every channel, a lane a channel.
__device__ void back_to_line(float* room, const float* weights, const float* ones, const float* slopes,
                             const flag* which, float* slopes_of_ones) {
  __shared__ flag chosen[TWOS];
  float *slope = room, *part = room + TWOS;
  const int i = blockIdx.x - SECOND / 2 * GROUPS, thread = threadIdx.x, y = thread / 32;
  const int lane = thread % 32, channel = min(lane, FIRST - 1);
  for (int at = thread; at < TWOS; at += BACK)
    slope[at] = slopes[(size_t)i * TWOS + at], chosen[at] = which[(size_t)i * TWOS + at];
  float line[WIDE + 1] = {0};
  for (int from = 0; from < SECOND; from += PART) {
    __syncthreads();
    for (int at = thread; at < PART * PATCH; at += BACK) part[at] = weights[WEIGHT_2 + from * PATCH + at];
    __syncthreads();
    for (int other = from; other < from + PART; other++) {
      float weight[9];
#pragma unroll
      for (int k = 0; k < 9; k++) weight[k] = part[(other - from) * PATCH + channel * 9 + k];
      for (int above = max(y / 2 - 1, 0); above <= min(y / 2, NARROW - 1); above++)
#pragma unroll
        for (int p = 0; p < NARROW; p++) {
          const int at = other * NARROWS + above * NARROW + p, k = y - 2 * above - chosen[at] / 2;
          if (slope[at] == 0 || k < 0 || k > 2) continue;
#pragma unroll
          for (int x = 0; x < 3; x++) {
            const float more = slope[at] * (k == 0 ? weight[x] : k == 1 ? weight[3 + x] : weight[6 + x]);
            if (chosen[at] % 2) line[2 * p + 1 + x] += more;
            else line[2 * p + x] += more;
          }
        }
    }
  }
  if (lane >= FIRST) return;
#pragma unroll
  for (int x = 0; x < WIDE; x++) {
    const size_t at = (size_t)i * ONES + lane * WIDES + y * WIDE + x;
    slopes_of_ones[at] = ones[at] == 0 ? 0 : line[x];
  }
}

extern "C" __global__ void __launch_bounds__(BACK) back_to_ones(const float* weights, const float* ones,
                                                                const float* slopes, const flag* which, float* parts,
                                                                float* slopes_of_ones, int images) {
  __shared__ float room[ONES];
  if (blockIdx.x < SECOND / 2 * GROUPS)
    layer_2(room, ones, slopes, which, parts, images);
  else
    back_to_line(room, weights, ones, slopes, which, slopes_of_ones);
}

// The first layer's gradient, by a block for every channel; the others add up the second's.
extern "C" __global__ void __launch_bounds__(1024) finish(const float* inputs, const float* slopes, const flag* which,
                                                         const float* parts, float* gradient, int images) {
  __shared__ float partial[32][10];
  const int thread = threadIdx.x, channel = blockIdx.x;
  if (channel >= FIRST) {
    const int at = (channel - FIRST) * 1024 + thread;
    if (at >= LAYER_2) return;
    float sum = 0;
    for (int group = 0; group < GROUPS; group++) sum += parts[(size_t)group * LAYER_2 + at];
    gradient[WEIGHT_2 + at] = sum;
    return;
  }
  float sums[10] = {0};  // of nine weights and the bias
  for (int k = thread; k < images * WIDES; k += 1024) {
    const int i = k / WIDES, place = k % WIDES;
    const size_t at = (size_t)i * ONES + channel * WIDES + place;
    const float slope = slopes[at];
    if (slope == 0) continue;
    const int y = 2 * (place / WIDE) + which[at] / 2, x = 2 * (place % WIDE) + which[at] % 2;
    const float* corner = inputs + (size_t)i * PIXELS + y * SIDE + x;
#pragma unroll
    for (int w = 0; w < 9; w++) sums[w] += slope * corner[w / 3 * SIDE + w % 3];
    sums[9] += slope;
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
