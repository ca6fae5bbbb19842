// The first convolution of ResNet-20, which sees images, there and back, compiled after `gpu_tensor_cores.cu` and
// `gpu_tiles.cu`. The 27 numbers that an output sees are gathered as a row of a product.
//
// Both launches have blocks that do something else for all other convolutions, since one launch more would take longer:
// on the way there they pack weights, on the way back they add up parts of the weights' gradients.

#define CHANNELS 16
#define SEEN 27
#define PATCH 32  // SEEN, filled up with zeros
#define PITCH (PATCH + PAD)
#define TILE (MIXED ? 256 : 128)  // positions at a time
#define ROW_TILES (TILE / 16 / WARPS)
#define GRADIENT_PITCH (CHANNELS + PAD)
#define PAIRS 64  // of an output and an input channel, whose parts a block adds up
#define SLICES (THREADS / PAIRS)

// One row of the table of all other convolutions.
struct Convolution {
  int weight, packed, parts, inputs, outputs, blocks, pairs_before;
};
#define COLUMNS 7

__device__ Convolution convolution(const int* table, int number) {
  const int* row = table + number * COLUMNS;
  return {row[0], row[1], row[2], row[3], row[4], row[5], row[6]};
}

// Gathers what each output of a tile sees; rows beyond the last position are 0.
__device__ void gather(Number* tile, const float* images, int start, int count) {
  for (int row = threadIdx.x; row < TILE; row += THREADS) {
    const Place at = Sized<HEIGHT, WIDTH>().place(start + row);
    const float* image = images + at.image * 3 * HEIGHT * WIDTH + at.y * WIDTH + at.x;
    bool lines[3], columns[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
      lines[k] = start + row < count && (unsigned)(at.y + k - 1) < HEIGHT;
      columns[k] = (unsigned)(at.x + k - 1) < WIDTH;
    }
#pragma unroll
    for (int chunk = 0; chunk < PATCH / 8; chunk++) {
      float values[8];
#pragma unroll
      for (int k = 0; k < 8; k++) {
        const int number = chunk * 8 + k, line = number / 3 % 3, column = number % 3;
        const bool inside = number < SEEN && lines[line] && columns[column];
        values[k] = inside ? __ldg(image + (number / 9 * HEIGHT + line - 1) * WIDTH + column - 1) : 0;
      }
      Run<8> found;
      found.set(values);
      found.to_operand();
      found.store(tile + row * PITCH + chunk * 8);
    }
  }
}

// Packs eight weights, for the way there (`back` 0) or back, as a thread of a product takes them.
__device__ void pack(const float* weights, const Convolution& of, int item, int back, Number* packed) {
  const int lane = item % 32, rows = back ? of.outputs : of.inputs, columns = back ? of.inputs : of.outputs;
  const int block = item / 32, group = block % (columns / 16), k = block / (columns / 16) % (rows / 16);
  const int tap = block / (columns / 16) / (rows / 16);
  float values[8];
#pragma unroll
  for (int place = 0; place < 8; place++) {
    const int row = k * 16 + packed_row(lane, place), column = group * 16 + packed_column(lane, place);
    const int output = back ? row : column, input = back ? column : row;
    values[place] = weights[of.weight + (output * of.inputs + input) * 9 + tap];
  }
  Run<8> found;
  found.set(values);
  found.to_operand();
  found.store(packed + of.packed + item * 8);
}

// Packs all weights of other convolutions, and sets the gradient of running statistics to 0.
__device__ void pack_all(const float* weights, const int* table, int convolutions, int size, Number* packed,
                         float* gradient, int statistics, int block, int blocks) {
  const int thread = block * THREADS + threadIdx.x, threads = blocks * THREADS;
  for (int k = thread; k < statistics; k += threads) gradient[k] = 0;
  int number = 0;
  for (int item = thread; item < size / 8; item += threads) {
    while (number + 1 < convolutions && table[(number + 1) * COLUMNS + 1] <= item * 8) number++;
    const Convolution of = convolution(table, number);
    for (int back = 0; back < 2; back++) pack(weights, of, item - of.packed / 8, back, packed + back * size);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) convolve_images(
    const float* images, const float* weights, Number* outputs, float* partial, const int* table, Number* packed,
    float* gradient, int count, int blocks, int convolutions, int size, int statistics) {
  __shared__ __align__(16) Number tile[TILE * PITCH];
  __shared__ Found<CHANNELS> of_warps[WARPS];
  if (blockIdx.x >= blocks) {
    pack_all(weights, table, convolutions, size, packed, gradient, statistics, blockIdx.x - blocks,
             gridDim.x - blocks);
    return;
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, channel = lane % 4 * 4;
  Run<8> columns[PATCH / 16];
  int rows[ROW_TILES][ROWS_OF_LANE];
#pragma unroll
  for (int k = 0; k < PATCH / 16; k++) {
    float values[8];
#pragma unroll
    for (int place = 0; place < 8; place++) {
      const int row = k * 16 + packed_row(lane, place);
      values[place] = row < SEEN ? weights[packed_column(lane, place) * SEEN + row] : 0;
    }
    columns[k].set(values);
    columns[k].to_operand();
  }
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
    for (int k = 0; k < ROWS_OF_LANE; k++)
      rows[t][k] = ((warp * ROW_TILES + t) * 16 + lane_row(lane, k)) * PITCH + lane_start(lane);
  for (int start = blockIdx.x * TILE; start < count; start += blocks * TILE) {
    __syncthreads();  // the tile before was read
    gather(tile, images, start, count);
    __syncthreads();
    float values[2 * ROW_TILES][4];
    bool known[2 * ROW_TILES];
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
      float sums[8] = {};
#pragma unroll
      for (int k = 0; k < PATCH / 16; k++) {
        unsigned left[ROW_PARTS];
        load_rows(left, tile, rows[t], 16 * k);
        multiply(sums, left, columns[k].word);
      }
#pragma unroll
      for (int r = 2 * t; r < 2 * t + 2; r++) {
        const int position = start + (warp * ROW_TILES + t) * 16 + r % 2 * 8 + lane / 4;
#pragma unroll
        for (int c = 0; c < 4; c++) values[r][c] = sums[c / 2 * 4 + r % 2 * 2 + c % 2];
        known[r] = position < count;
        Run<4> found;
        found.set(values[r]);
        if (known[r]) found.store(outputs + position * CHANNELS + channel);
#pragma unroll
        for (int c = 0; c < 4; c++) values[r][c] = found.get(c);
      }
    }
    const bool first = start == blockIdx.x * TILE;
    count_rows<2 * ROW_TILES>(of_warps[warp], known, first);
    add_rows<2 * ROW_TILES>(of_warps[warp], channel, values, known, first);
  }
  store_statistics(of_warps, WARPS, partial);
}

// Adds up the blocks' parts of 64 pairs of channels, and writes them in the order of the weights.
__device__ void add_up(const float* parts, const int* table, int convolutions, float* gradient, int block) {
  __shared__ float sums[SLICES][PAIRS * 9];
  int number = 0;
  while (number + 1 < convolutions && table[(number + 1) * COLUMNS + 6] <= block * PAIRS) number++;
  const Convolution of = convolution(table, number);
  const int pairs = of.inputs * of.outputs, first = block * PAIRS - of.pairs_before, pair = threadIdx.x % PAIRS;
  const float* its = parts + of.parts + first + pair;
  float total[9] = {};
#pragma unroll 2
  for (int b = threadIdx.x / PAIRS; b < of.blocks; b += SLICES)
#pragma unroll
    for (int tap = 0; tap < 9; tap++) total[tap] += its[(b * 9 + tap) * pairs];
#pragma unroll
  for (int tap = 0; tap < 9; tap++) sums[threadIdx.x / PAIRS][pair * 9 + tap] = total[tap];
  __syncthreads();
  for (int k = threadIdx.x; k < PAIRS * 9; k += THREADS) {
    float sum = 0;
    for (int slice = 0; slice < SLICES; slice++) sum += sums[slice][k];
    gradient[of.weight + first * 9 + k] = sum;
  }
}

// Loads a tile's gradient of the outputs through the batch normalisation after them.
__device__ void load_gradient(Number* tile, int start, int count, const Number* given, const Number* outputs,
                              const float (*back)[CHANNELS]) {
  const int channel = threadIdx.x % 2 * 8;
  float factor[8], slope[8], off[8];
  load_floats<8>(factor, back[0] + channel), load_floats<8>(slope, back[1] + channel);
  load_floats<8>(off, back[2] + channel);
  for (int row = threadIdx.x / 2; row < TILE; row += THREADS / 2) {
    Run<8> found, output;
    found.clear();
    if (start + row < count) {
      const int at = (start + row) * CHANNELS + channel;
      found.load(given + at), output.load(outputs + at);
      float values[8];
#pragma unroll
      for (int c = 0; c < 8; c++)
        values[c] = gradient_before(found.get(c), output.get(c), factor[c], slope[c], off[c]);
      found.set(values);
    }
    found.to_operand();
    found.store(tile + row * GRADIENT_PITCH + channel);
  }
}

// Writes the block's part: the sum over its warps, of which each had some of the positions.
__device__ void store_part(const float (*sums)[8], float (*shared)[CHANNELS * PATCH], float* part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int group = 0; group < PATCH / 16; group++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      shared[warp][sum_row(lane, k / 2) * PATCH + group * 16 + sum_column(lane, k / 2) + k % 2] = sums[group][k];
  __syncthreads();
  for (int k = threadIdx.x; k < CHANNELS * SEEN; k += THREADS) {
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += shared[w][k / SEEN * PATCH + k % SEEN];
    part[k] = sum;
  }
}

// Adds up the parts of all blocks, by the last one: four numbers a thread, and every second part.
__device__ void add_parts(const float* parts, int blocks, float (*shared)[CHANNELS * SEEN], float* gradient) {
  const int columns = CHANNELS * SEEN / 4, slice = threadIdx.x / columns, first = threadIdx.x % columns * 4;
  if (slice < 2) {
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 16
    for (int b = slice; b < blocks; b += 2) {
      const float4 part = __ldcg((const float4*)(parts + b * CHANNELS * SEEN + first));
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    *(float4*)(shared[slice] + first) = total;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < CHANNELS * SEEN; k += THREADS) gradient[k] = shared[0][k] + shared[1][k];
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) image_weight_gradient(
    const float* images, const Number* given, const Number* outputs, const float* kept, const float* sums,
    const float* weights, float* gradient, float* first_parts, const float* parts, const int* table, unsigned* counter,
    int sum_blocks, int norm, int count, int blocks, int convolutions) {
  __shared__ __align__(16) Number memory[TILE * (PITCH + GRADIENT_PITCH)];
  __shared__ __align__(16) float back[3][CHANNELS];
  if (blockIdx.x >= blocks) {
    add_up(parts, table, convolutions, gradient, blockIdx.x - blocks);
  } else {
    Number* tile = memory + TILE * PITCH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    find_gradient_factors<CHANNELS>(sums, sum_blocks, kept, weights, norm, count, gradient, back);
    float found[PATCH / 16][8] = {};
    for (int start = blockIdx.x * TILE; start < count; start += blocks * TILE) {
      __syncthreads();  // the factors are there, and the tile before was read
      gather(memory, images, start, count);
      load_gradient(tile, start, count, given, outputs, back);
      __syncthreads();
#pragma unroll 1
      for (int step = warp; step < TILE / 16; step += WARPS) {
        unsigned left[ROW_PARTS], right[COLUMN_PARTS];
        int left_rows[POSITIONS_OF_LANE], right_rows[POSITIONS_OF_LANE];
#pragma unroll
        for (int k = 0; k < POSITIONS_OF_LANE; k++) {
          left_rows[k] = (step * 16 + left_position(lane, k)) * GRADIENT_PITCH;
          right_rows[k] = (step * 16 + right_position(lane, k)) * PITCH;
        }
        load_left(left, tile, left_rows, left_start(lane));
#pragma unroll
        for (int group = 0; group < PATCH / 16; group++) {
          load_right(right, memory, right_rows, group * 16 + right_start(lane));
          multiply(found[group], left, right);
        }
      }
    }
    store_part(found, (float(*)[CHANNELS * PATCH])memory, first_parts + blockIdx.x * CHANNELS * SEEN);
  }
  if (is_last_block(counter)) add_parts(first_parts, blocks, (float(*)[CHANNELS * SEEN])memory, gradient);
}
