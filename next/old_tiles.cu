// Tiles of images and statistics of channels, for the kernels of ResNet-20.
//
// Activations lie with the channels innermost. A block computes tiles: some lines and columns of an image, or some
// whole small images. It leaves one row of statistics; whoever reads the outputs next adds up the rows of all blocks,
// always in the same order. Sizes but for the number of images are known when this is compiled, so that finding a
// place takes few instructions: these kernels are limited by those.

#define THREADS 256
#define WARPS (THREADS / 32)

struct Place {
  int image, y, x;
};

// Sizes of a tensor, apart from its channels.
template <int Height, int Width>
struct Sized {
  int images;
  __device__ bool has(Place at) const {
    return at.image < images && (unsigned)at.y < Height && (unsigned)at.x < Width;
  }
  __device__ int position(Place at) const { return (at.image * Height + at.y) * Width + at.x; }
  __device__ Place place(unsigned position) const {
    return {(int)(position / (Height * Width)), (int)(position / Width % Height), (int)(position % Width)};
  }
};

// What is added where a block of the network ends: its inputs, or every second pixel of them between new channels of 0.
struct Shortcut {
  const Number* inputs;
  int height, width, channels, stride;  // no channels: there is none
  __device__ bool has(int channel, int all) const {
    const int its = channel - (all - channels) / 2;
    return its >= 0 && its < channels;
  }
  __device__ const Number* at(Place place, int channel, int all) const {
    const int position = (place.image * height + place.y * stride) * width + place.x * stride;
    return inputs + position * channels + channel - (all - channels) / 2;
  }
};

// Image, line and column of a row of a box of images in shared memory.
template <int Lines, int Columns>
struct Box {
  static const int SIZE = Lines * Columns;
  __device__ static Place place(unsigned row) {
    return {(int)(row / SIZE), (int)(row / Columns % Lines), (int)(row % Columns)};
  }
  __device__ static int row(Place at) { return (at.image * Lines + at.y) * Columns + at.x; }
};

__device__ Place operator+(Place a, Place b) { return {a.image + b.image, a.y + b.y, a.x + b.x}; }

// How images are cut, some of them a tile if they are small; the last tile of a line, column or batch may reach beyond it.
template <int Height, int Width, int Lines, int Columns, int Group>
struct Cut {
  static const int SIZE = Group * Lines * Columns, DOWN = (Height + Lines - 1) / Lines,
                   ACROSS = (Width + Columns - 1) / Columns;
  static const bool IN_A_ROW = Columns == Width && (Group == 1 || Lines == Height);  // a tile's rows in memory

  Place corner;
  int images, start, limit;  // where a tile in a row begins, and how many of its rows there are

  __device__ static int count(int images) { return (images + Group - 1) / Group * (DOWN * ACROSS); }
  __device__ Cut(unsigned tile, int images) : images(images) {
    corner = {(int)(tile / (DOWN * ACROSS) * Group), (int)(tile / ACROSS % DOWN * Lines), (int)(tile % ACROSS * Columns)};
    start = (corner.image * Height + corner.y) * Width;
    limit = min(SIZE, Group == 1 ? (Height - corner.y) * Width : images * Height * Width - start);
  }
  __device__ Place place(int row) const { return corner + Box<Lines, Columns>::place(row); }
  __device__ bool has(int row) const {
    return IN_A_ROW ? row < limit : row < SIZE && Sized<Height, Width>{images}.has(place(row));
  }
  __device__ int position(int row) const {
    return IN_A_ROW ? start + row : Sized<Height, Width>{images}.position(place(row));
  }
};

// COUNT numbers of shared memory, four at a time.
template <int COUNT>
__device__ void load_floats(float* to, const float* from) {
#pragma unroll
  for (int k = 0; k < COUNT; k += 4) {
    const float4 four = *(const float4*)(from + k);
    to[k] = four.x, to[k + 1] = four.y, to[k + 2] = four.z, to[k + 3] = four.w;
  }
}

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

// What a warp found, in shared memory, since registers are few: sums of how far numbers are from one of them, and of
// the squares of that. Such sums cancel little, and take no division.
template <int CHANNELS>
struct Found {
  float one[CHANNELS], sums[2][CHANNELS], count;
};

// Sums of eight values over the eight lanes that have the same channels; lane / 4 says which sum a lane is given.
__device__ float sum_over_rows(const float* values) {
  float rest[8];
#pragma unroll
  for (int k = 0; k < 8; k++) rest[k] = values[k];
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = threadIdx.x & 4 * half;
#pragma unroll
    for (int k = 0; k < half; k++) {
      const float other = __shfl_xor_sync(FULL, upper ? rest[k] : rest[k + half], 4 * half);
      rest[k] = (upper ? rest[k + half] : rest[k]) + other;
    }
  }
  return rest[0];
}

// How many of its ROWS rows there are, for all lanes of a warp together.
template <int ROWS, int CHANNELS>
__device__ void count_rows(Found<CHANNELS>& of_warp, const bool* known, bool first) {
  int count = 0;
#pragma unroll
  for (int k = 0; k < ROWS; k++) count += __popc(__ballot_sync(FULL, known[k])) / 4;
  if (threadIdx.x % 32 == 0) of_warp.count = first ? count : of_warp.count + count;
}

// Adds what a warp has for 4 channels a thread in ROWS rows, of which `known` marks those that exist.
template <int ROWS, int CHANNELS>
__device__ void add_rows(Found<CHANNELS>& of_warp, int channel, const float (*values)[4], const bool* known,
                         bool first) {
  float found[8];  // sums of four channels, and sums of squares
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const float newest = __shfl_sync(FULL, known[0] ? values[0][c] : 0, threadIdx.x % 4);
    const float one = first ? newest : of_warp.one[channel + c];
    if (first && threadIdx.x % 32 < 4) of_warp.one[channel + c] = one;
    found[c] = found[4 + c] = 0;
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      const float step = known[k] ? values[k][c] - one : 0;
      found[c] += step;
      found[4 + c] = fmaf(step, step, found[4 + c]);
    }
  }
  const float sum = sum_over_rows(found);
  float* total = of_warp.sums[threadIdx.x % 32 / 16] + channel + threadIdx.x / 4 % 4;
  *total = first ? sum : *total + sum;
}

// Writes the block's row of statistics, from those of its warps.
template <int CHANNELS>
__device__ void store_statistics(const Found<CHANNELS>* of_warps, int warps, float* partial) {
  __syncthreads();
  const int c = threadIdx.x;
  if (c >= CHANNELS) return;
  Statistics total = {0, 0, 0};
#pragma unroll 1
  for (int k = 0; k < warps; k++) {
    const Found<CHANNELS>& of_warp = of_warps[k];
    const float sum = of_warp.sums[0][c], step = sum / of_warp.count;  // a warp without numbers is not merged
    total.merge({of_warp.count, of_warp.one[c] + step, of_warp.sums[1][c] - step * sum});
  }
  float* row = partial + blockIdx.x * (2 * CHANNELS + 1);
  row[c] = total.mean;
  row[CHANNELS + c] = total.squares;
  if (c == 0) row[2 * CHANNELS] = total.count;
}

// What is added to a value times the factor, so that the mean becomes the shift. The same rounding there and back, where
// the same activations must be found.
__device__ float shift_past(float mean, float factor, float shift) { return fmaf(-mean, factor, shift); }
__device__ float normalised(float value, float factor, float shift) { return fmaf(value, factor, shift); }

// A batch normalisation of CHANNELS channels.
struct Normalisation {
  const float* partial;  // a row of statistics for each block that wrote its inputs
  float* kept;           // mean and inverse deviation
  float* moved;          // how far the running statistics move down
  int blocks;         // rows of statistics; with none it is by the running ones
  int norm, running;  // where its factors and its running statistics begin in the weights
  float momentum, epsilon;
};

// Factor and shift of a channel, in shared memory; returns the inverse deviation.
template <int CHANNELS>
__device__ float set_normal(const Normalisation& of, int c, float mean, float variance, const float* weights,
                            float (*normal)[CHANNELS]) {
  const float inverse = 1 / sqrtf(variance + of.epsilon);
  normal[0][c] = weights[of.norm + c] * inverse;
  normal[1][c] = shift_past(mean, normal[0][c], weights[of.norm + CHANNELS + c]);
  return inverse;
}

// Factor and shift of every channel, in shared memory; the first block keeps what later launches need.
template <int CHANNELS>
__device__ void find_normalisation(const Normalisation& of, const float* weights, float (*normal)[CHANNELS]) {
  __shared__ float sums[3][THREADS];
  const int c = threadIdx.x % CHANNELS, slices = THREADS / CHANNELS;
  const float* running = weights + of.running + c;
  if (of.blocks == 0) {
    // Whatever a poisoned step made of a variance, its root must exist.
    if (threadIdx.x < CHANNELS) set_normal(of, c, running[0], relu(running[CHANNELS]), weights, normal);
    __syncthreads();
    return;
  }
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
    const float inverse = set_normal(of, c, mean, variance, weights, normal);
    if (blockIdx.x == 0 && blockIdx.y == 0) {
      of.kept[c] = mean;
      of.kept[CHANNELS + c] = inverse;
      of.moved[c] = of.momentum * (running[0] - mean);
      of.moved[CHANNELS + c] = of.momentum * (running[CHANNELS] - variance * (count / (count - 1)));
    }
  }
  __syncthreads();
}

// What a gradient becomes on its way back through a normalisation: factor (g - average - (z - mean) slope), as factors
// of g and z and what is added, from two sums that each block left, of gradients and of gradients times what the
// normalisation made. The first block writes the gradients of the normalisation's own factors and shifts, which are
// these sums.
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
  back[0][c] = factor;
  back[1][c] = -factor * (product / count * inverse);
  back[2][c] = shift_past(kept[c], back[1][c], -factor * (plain / count));
  if (blockIdx.x == 0 && blockIdx.y == 0) gradient[norm + c] = product, gradient[norm + CHANNELS + c] = plain;
}

__device__ float gradient_before(float given, float output, float factor, float slope, float off) {
  return fmaf(given, factor, fmaf(output, slope, off));
}
