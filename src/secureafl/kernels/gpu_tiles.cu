// Tiles of images and statistics of channels, for the kernels of ResNet-20.
//
// Activations lie with the channels innermost. A block computes tiles: some lines and columns of an image, or some
// whole small images. It leaves one row of statistics; whoever reads the outputs next adds up the rows of all blocks,
// always in the same order.

#define THREADS 256
#define WARPS (THREADS / 32)

// Divides small numbers by one that is known only when the kernel runs.
struct Divider {
  int by;
  float inverse;
  __device__ Divider(int by) : by(by), inverse(1.0f / by) {}
  __device__ int operator()(int number) const { return (int)((number + 0.5f) * inverse); }
};

struct Place {
  int image, y, x;
};

// Sizes of a tensor, apart from its channels.
struct Tensor {
  int images, height, width;
  __device__ bool has(Place at) const {
    return at.image < images && at.y >= 0 && at.y < height && at.x >= 0 && at.x < width;
  }
  __device__ int position(Place at) const { return (at.image * height + at.y) * width + at.x; }
};

// What is added where a block of the network ends: its inputs, or every second pixel of them between new channels of 0.
struct Shortcut {
  const Number* inputs;
  Tensor of;
  int channels, stride;  // no channels: there is none
  __device__ bool has(int channel, int all) const {
    const int its = channel - (all - channels) / 2;
    return its >= 0 && its < channels;
  }
  __device__ const Number* at(Place place, int channel, int all) const {
    const int position = of.position({place.image, place.y * stride, place.x * stride});
    return inputs + position * channels + channel - (all - channels) / 2;
  }
};

// How a tensor of images is cut; the last tile of a line, column or batch may reach beyond it.
struct Tiles {
  int images, height, width;
  int lines, columns, group;  // of a tile, which has that many images
  int across, down, count;

  __device__ Tiles(int images, int height, int width, int lines, int columns, int group)
      : images(images), height(height), width(width), lines(lines), columns(columns), group(group) {
    across = (width + columns - 1) / columns;
    down = (height + lines - 1) / lines;
    count = (images + group - 1) / group * down * across;
  }
  __device__ int size() const { return group * lines * columns; }
  __device__ Place corner(int tile) const {
    return {tile / (across * down) * group, tile / across % down * lines, tile % across * columns};
  }
};

// Image, line and column of a row of a box of images in shared memory.
struct Box {
  int lines, columns;
  Divider by_line, by_image;
  __device__ Box(int lines, int columns)
      : lines(lines), columns(columns), by_line(columns), by_image(lines * columns) {}
  __device__ Place place(int row) const {
    const int image = by_image(row), rest = row - image * by_image.by, y = by_line(rest);
    return {image, y, rest - y * columns};
  }
  __device__ int row(Place at) const { return (at.image * lines + at.y) * columns + at.x; }
};

// Of numbers so far: how many, their mean and the sum of their squared deviations.
struct Statistics {
  float count, mean, squares;

  __device__ void merge(const Statistics& other) {
    if (other.count == 0) return;
    const float step = other.mean - mean, share = other.count / (count + other.count);
    squares += other.squares + step * step * (count * share);
    mean += step * share;
    count += other.count;
  }
};

// Sum over the eight lanes that have the same channels.
__device__ float sum_of_rows(float value) {
  for (int lane = 4; lane < 32; lane *= 2) value += __shfl_xor_sync(FULL, value, lane);
  return value;
}

// Adds what a warp found for 4 channels a thread in ROWS rows, of which `known` marks those that exist, to what it found
// before. That waits in shared memory, since registers are few.
template <int ROWS>
__device__ void add_rows(Statistics* total, const float (*values)[4], const bool* known) {
  float count = 0;
#pragma unroll
  for (int k = 0; k < ROWS; k++) count += known[k];
  count = sum_of_rows(count);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < ROWS; k++) sum += known[k] ? values[k][c] : 0;
    const float mean = sum_of_rows(sum) / count;
#pragma unroll
    for (int k = 0; k < ROWS; k++) squares += known[k] ? (values[k][c] - mean) * (values[k][c] - mean) : 0;
    squares = sum_of_rows(squares);
    if (threadIdx.x % 32 < 4) total[c].merge({count, mean, squares});
  }
}

// Statistics of no numbers yet, for each warp along the rows.
template <int CHANNELS>
__device__ void clear_statistics(Statistics (*of_warps)[CHANNELS], int warps) {
  for (int k = threadIdx.x; k < warps * CHANNELS; k += THREADS) of_warps[k / CHANNELS][k % CHANNELS] = {0, 0, 0};
}

// Writes the block's row of statistics, from those of its warps.
template <int CHANNELS>
__device__ void store_statistics(const Statistics (*of_warps)[CHANNELS], int warps, float* partial) {
  __syncthreads();
  const int c = threadIdx.x;
  if (c >= CHANNELS) return;
  Statistics total = {0, 0, 0};
  for (int k = 0; k < warps; k++) total.merge(of_warps[k][c]);
  float* row = partial + blockIdx.x * (2 * CHANNELS + 1);
  row[c] = total.mean;
  row[CHANNELS + c] = total.squares;
  if (c == 0) row[2 * CHANNELS] = total.count;
}

// A batch normalisation of CHANNELS channels.
struct Normalisation {
  const float* partial;  // a row of statistics for each block that wrote its inputs
  float* kept;           // mean and inverse deviation
  float* moved;          // how far the running statistics move down
  int blocks, norm, running;  // rows; where its factors and its running statistics begin in the weights
  float momentum, epsilon;
};

// Mean, factor and shift of every channel, in shared memory; the first block keeps what later launches need.
template <int CHANNELS>
__device__ void find_normalisation(const Normalisation& of, const float* weights, float (*normal)[CHANNELS]) {
  __shared__ float sums[3][THREADS];
  const int c = threadIdx.x % CHANNELS, slices = THREADS / CHANNELS;
  const float first = of.partial[c];  // a number near the mean, so that nothing cancels
  float count = 0, off = 0, squares = 0;
#pragma unroll 4
  for (int b = threadIdx.x / CHANNELS; b < of.blocks; b += slices) {
    const float* row = of.partial + b * (2 * CHANNELS + 1);
    const float size = row[2 * CHANNELS], step = row[c] - first;
    count += size;
    off += size * step;
    squares += row[CHANNELS + c] + size * step * step;
  }
  sums[0][threadIdx.x] = count, sums[1][threadIdx.x] = off, sums[2][threadIdx.x] = squares;
  __syncthreads();
  if (threadIdx.x < CHANNELS) {
    for (int k = 1; k < slices; k++) {
      count += sums[0][k * CHANNELS + c];
      off += sums[1][k * CHANNELS + c];
      squares += sums[2][k * CHANNELS + c];
    }
    const float step = off / count, mean = first + step, variance = relu(squares / count - step * step);
    const float inverse = 1 / sqrtf(variance + of.epsilon);
    normal[0][c] = mean;
    normal[1][c] = weights[of.norm + c] * inverse;
    normal[2][c] = weights[of.norm + CHANNELS + c];
    if (blockIdx.x == 0 && blockIdx.y == 0) {
      const float* before = weights + of.running + c;
      of.kept[c] = mean;
      of.kept[CHANNELS + c] = inverse;
      of.moved[c] = of.momentum * (before[0] - mean);
      of.moved[CHANNELS + c] = of.momentum * (before[CHANNELS] - variance * (count / (count - 1)));
    }
  }
  __syncthreads();
}

// The same rounding on the way back, which must find the same activations.
__device__ float normalised(float value, float mean, float factor, float shift) {
  return fmaf(value - mean, factor, shift);
}

// What a gradient becomes on its way back through a normalisation: factor (g - average - (z - mean) slope), from two
// sums that each block left, of gradients and of gradients times what the normalisation made. The first block writes
// the gradients of the normalisation's own factors and shifts, which are these sums.
template <int CHANNELS>
__device__ void find_gradient_factors(const float* sums, int blocks, const float* kept, const float* weights, int norm,
                                      float count, float* gradient, float (*back)[CHANNELS]) {
  __shared__ float found[2][THREADS];
  const int c = threadIdx.x % CHANNELS, slices = THREADS / CHANNELS;
  float plain = 0, product = 0;
#pragma unroll 4
  for (int b = threadIdx.x / CHANNELS; b < blocks; b += slices)
    plain += sums[b * 2 * CHANNELS + c], product += sums[b * 2 * CHANNELS + CHANNELS + c];
  found[0][threadIdx.x] = plain, found[1][threadIdx.x] = product;
  __syncthreads();
  if (threadIdx.x >= CHANNELS) return;
  for (int k = 1; k < slices; k++) plain += found[0][k * CHANNELS + c], product += found[1][k * CHANNELS + c];
  const float inverse = kept[CHANNELS + c], factor = weights[norm + c] * inverse;
  back[0][c] = kept[c];
  back[1][c] = factor;
  back[2][c] = -factor * (plain / count);
  back[3][c] = -factor * (product / count * inverse);
  if (blockIdx.x == 0 && blockIdx.y == 0) gradient[norm + c] = product, gradient[norm + CHANNELS + c] = plain;
}

template <int CHANNELS>
__device__ float gradient_before(float given, float output, const float (*back)[CHANNELS], int channel) {
  const float off = fmaf(output - back[0][channel], back[3][channel], back[2][channel]);
  return fmaf(given, back[1][channel], off);
}
