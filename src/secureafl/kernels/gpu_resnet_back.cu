// The way back through a 3 x 3 convolution of ResNet-20, compiled after `gpu_tensor_cores.cu` and `gpu_tiles.cu`.
//
// A block brings a tile of the gradient of the convolution's outputs with its rim into shared memory, through the
// batch normalisation after it, and the convolution's inputs there. Both products take them from there: the gradient of
// the inputs, which goes on past the ReLU that made them and leaves the two sums that the normalisation before needs,
// and that of the weights, which each block adds up over its tiles. A second coordinate of the grid cuts the inputs'
// channels. With stride 2 inputs are of four kinds, by whether line and column are odd, and each tap sees one kind.
// IN, OUT, STRIDE, SLICE and the sizes of a tile are defined by `kernels.gpu_resnet`.

#define PITCH (OUT + PAD)
#define INPUT_PITCH (SLICE + PAD)
#define TILE (16 * WARP_ROWS * ROW_TILES)  // positions, of each kind
#define KINDS (STRIDE * STRIDE)
#define AT_ONCE (MIXED ? 2 : 1)
#define WARP_COLUMNS (SLICE / 16)
#define ROWS (2 * ROW_TILES)  // that a thread has sums of
// Of the weights' gradient a warp has 16 x 16 of each tap; several share the positions if they are more.
#define LEFT_WARPS (OUT / 16)
#define PARTS (LEFT_WARPS * WARP_COLUMNS)
#define SHARES (WARPS / PARTS)
#define TAPS_AT_ONCE 3  // whose sums over warps fit into shared memory
#define SUMS (TAPS_AT_ONCE * 8 * 32)  // of a warp
#define TILES_SIZE (MOST_ROWS * PITCH + KINDS * TILE * INPUT_PITCH)
#define SUMS_SIZE (WARPS * SUMS * 4 / (int)sizeof(Number))

// Of which kind the inputs are that a tap sees, and which line (or column) of the gradient they see through it.
__device__ constexpr int kind_of(int tap) { return STRIDE == 1 ? 0 : (tap / 3 != 1) * 2 + (tap % 3 != 1); }
__device__ constexpr int line_of(int tap) { return STRIDE == 1 ? 2 - tap : tap == 0; }

// Loads eight channels at a time of the gradient of the outputs.
__device__ void load_gradient(Number* tile, Place corner, int group, const Box& box, const Number* given,
                              const Number* outputs, Tensor of, const float (*back)[OUT]) {
  const int channel = threadIdx.x % (OUT / 8) * 8, step = THREADS / (OUT / 8), rows = group * box.by_image.by;
  for (int first = threadIdx.x / (OUT / 8); first < rows; first += AT_ONCE * step) {
    Run<8> found[AT_ONCE], output[AT_ONCE];
    bool known[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const Place local = box.place(first + k * step);
      const Place place = {corner.image + local.image, corner.y - (STRIDE == 1) + local.y,
                           corner.x - (STRIDE == 1) + local.x};
      known[k] = first + k * step < rows && of.has(place);
      found[k].clear(), output[k].clear();
      const int at = of.position(place) * OUT + channel;
      if (known[k]) found[k].load(given + at), output[k].load(outputs + at);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      read_again();
      float values[8];
#pragma unroll
      for (int c = 0; c < 8; c++)
        values[c] = gradient_before(found[k].get(c), output[k].get(c), back, channel + c);
      if (known[k]) found[k].set(values);
      found[k].to_operand();
      if (first + k * step < rows) found[k].store(tile + (first + k * step) * PITCH + channel);
    }
  }
}

// Loads the tile's own inputs, kind by kind; where there are none, zeros. With `normed` they are normalised first.
__device__ void load_inputs(Number* tile, Place corner, const Tiles& tiles, const Box& own, const Number* inputs,
                            Tensor of, const float (*before)[SLICE], bool normed) {
  const int channel = threadIdx.x % (SLICE / 8) * 8, step = THREADS / (SLICE / 8);
  for (int first = threadIdx.x / (SLICE / 8); first < KINDS * TILE; first += AT_ONCE * step) {
    Run<8> found[AT_ONCE];
    bool known[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int row = first + k * step, kind = row / TILE;
      const Place local = own.place(row % TILE);
      const Place place = {corner.image + local.image, (corner.y + local.y) * STRIDE + kind / 2,
                           (corner.x + local.x) * STRIDE + kind % 2};
      known[k] = row < KINDS * TILE && row % TILE < tiles.size() && of.has(place);
      found[k].clear();
      if (known[k]) found[k].load(inputs + of.position(place) * IN + blockIdx.y * SLICE + channel);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      read_again();
      float values[8];
#pragma unroll
      for (int c = 0; c < 8; c++)
        values[c] = relu(normalised(
            found[k].get(c), before[0][channel + c], before[2][channel + c], before[3][channel + c]));
      if (known[k] && normed) found[k].set(values);
      found[k].to_operand();
      if (first + k * step < KINDS * TILE) found[k].store(tile + (first + k * step) * INPUT_PITCH + channel);
    }
  }
}

// The gradient of inputs of one kind, which the taps that see them send back.
template <int KIND>
__device__ void send_back(float (*sums)[8], const Number* tile, const int (*rows)[ROWS_OF_LANE], int line,
                          const Number* packed, int group) {
  const int LINES_AT_ONCE = STRIDE == 1 ? 1 : 3;  // with stride 2 each tap is told apart when this is compiled
  const int K_AT_ONCE = STRIDE == 1 && MIXED ? 2 : 1;
#pragma unroll LINES_AT_ONCE
  for (int y = 0; y < 3; y++)
#pragma unroll
    for (int x = 0; x < 3; x++)
      if (kind_of(y * 3 + x) == KIND)
#pragma unroll K_AT_ONCE
        for (int k = 0; k < OUT / 16; k++) {
          Run<8> columns;
          const int block = ((y * 3 + x) * (OUT / 16) + k) * (IN / 16) + group;
          columns.load(packed + block * 256 + threadIdx.x % 32 * 8);
#pragma unroll
          for (int t = 0; t < ROW_TILES; t++) {
            unsigned left[ROW_PARTS];
            load_rows(left, tile, rows[t], (line_of(y) * line + line_of(x)) * PITCH + 16 * k);
            multiply(sums[t], left, columns.word);
          }
        }
}

// Where gradients of inputs go, and what they are multiplied with on the way.
struct Before {
  const Number* outputs;  // of the convolution before
  const Number* past;     // gradient past the shortcut, if there is one
  Number* found;
  const float (*normal)[SLICE];
  Tensor inputs, of;
  bool shortcut;
};

// Adds the shortcut's gradient, passes the ReLU, stores the gradient, and adds to its sums and products.
__device__ void store_gradient(const float (*sums)[8], int kind, const Before& before, Place corner,
                               const Tiles& tiles, const Box& own, const Number* active, int warp_row, int channel,
                               float* plain, float* product) {
  const int slice = blockIdx.y * SLICE + channel;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int row = (warp_row * ROW_TILES + r / 2) * 16 + r % 2 * 8 + threadIdx.x % 32 / 4;
    const Place local = own.place(row), output = {corner.image + local.image, corner.y + local.y, corner.x + local.x};
    const Place place = {output.image, output.y * STRIDE + kind / 2, output.x * STRIDE + kind % 2};
    if (row >= tiles.size() || !before.inputs.has(place)) continue;
    read_again();
    const int at = before.inputs.position(place) * IN + slice;
    Run<4> cut, input, raw, found;
    cut.clear();
    raw.load(before.outputs + at);
    if (before.shortcut && kind == 0)
      cut.load(before.past + before.of.position(output) * OUT + (OUT - IN) / 2 + slice);
    input.load_shared(active + (kind * TILE + row) * INPUT_PITCH + channel);
    float values[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
      values[c] = input.get(c) <= 0 ? 0 : sums[r / 2][c / 2 * 4 + r % 2 * 2 + c % 2] + cut.get(c);
    found.set(values);
    found.store(before.found + at);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float normal = (raw.get(c) - before.normal[0][channel + c]) * before.normal[1][channel + c];
      plain[c] += found.get(c);
      product[c] += found.get(c) * normal;
    }
  }
}

// Adds a tile's sums to those of its warps, which wait in shared memory: registers are few.
__device__ void add_sums(const float* plain, const float* product, int warp_row, int channel,
                         float (*of_warps)[2][SLICE]) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const float one = sum_of_rows(plain[c]), other = sum_of_rows(product[c]);
    if (threadIdx.x % 32 < 4) of_warps[warp_row][0][channel + c] += one, of_warps[warp_row][1][channel + c] += other;
  }
}

// Writes the block's two sums of each channel.
__device__ void store_sums(const float (*of_warps)[2][SLICE], float* sums) {
  __syncthreads();
  if (threadIdx.x >= 2 * SLICE) return;
  const int which = threadIdx.x / SLICE, c = threadIdx.x % SLICE;
  float total = 0;
  for (int k = 0; k < WARP_ROWS; k++) total += of_warps[k][which][c];
  sums[(blockIdx.x * 2 + which) * IN + blockIdx.y * SLICE + c] = total;
}

// Adds a tile's products of gradients and inputs; a warp has some of the positions.
__device__ void add_weights(float (*sums)[8], const Number* tile, const Number* active, const int* row_of, int line,
                            int steps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS;
  const int from = part % LEFT_WARPS * 16 + left_start(lane), start = part / LEFT_WARPS * 16 + right_start(lane);
#pragma unroll 1
  for (int step = warp / PARTS; step < steps; step += SHARES) {
    int left_rows[POSITIONS_OF_LANE], right_rows[POSITIONS_OF_LANE];
#pragma unroll
    for (int k = 0; k < POSITIONS_OF_LANE; k++) {
      left_rows[k] = row_of[step * 16 + left_position(lane, k)];
      right_rows[k] = (step * 16 + right_position(lane, k)) * INPUT_PITCH;
    }
#pragma unroll
    for (int kind = 0; kind < KINDS; kind++) {
      unsigned right[COLUMN_PARTS];
      load_right(right, active, right_rows, kind * TILE * INPUT_PITCH + start);
#pragma unroll
      for (int tap = 0; tap < 9; tap++)
        if (kind_of(tap) == kind) {
          unsigned left[ROW_PARTS];
          load_left(left, tile, left_rows, (line_of(tap / 3) * line + line_of(tap % 3)) * PITCH + from);
          multiply(sums[tap], left, right);
        }
    }
  }
}

// Writes the block's part of the weights' gradient, by tap, output and input: the sum over the warps that share it.
__device__ void store_weights(const float (*sums)[8], float* shared, float* parts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int first = 0; first < 9; first += TAPS_AT_ONCE) {
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < TAPS_AT_ONCE; tap++)
#pragma unroll
      for (int k = 0; k < 8; k++) shared[warp * SUMS + (tap * 8 + k) * 32 + lane] = sums[first + tap][k];
    __syncthreads();
    for (int line = warp; line < PARTS * TAPS_AT_ONCE * 4; line += WARPS) {
      const int part = line / (TAPS_AT_ONCE * 4), tap = line / 4 % TAPS_AT_ONCE, pair = line % 4;
      float2 total = make_float2(0, 0);
      for (int share = 0; share < SHARES; share++) {
        const float* its = shared + (share * PARTS + part) * SUMS + (tap * 8 + 2 * pair) * 32 + lane;
        total.x += its[0], total.y += its[32];
      }
      const int output = part % LEFT_WARPS * 16 + sum_row(lane, pair);
      const int input = blockIdx.y * SLICE + part / LEFT_WARPS * 16 + sum_column(lane, pair);
      *(float2*)(parts + ((blockIdx.x * 9 + first + tap) * OUT + output) * IN + input) = total;
    }
  }
}

template <int KIND>
__device__ void send_back_kinds(const Before& before, Place corner, const Tiles& tiles, const Box& own,
                                const Number* tile, const Number* active, const int (*rows)[ROWS_OF_LANE], int line,
                                const Number* packed, int warp_row, int warp_column, int channel, float* plain,
                                float* product) {
  float sums[ROW_TILES][8] = {};
  send_back<KIND>(sums, tile, rows, line, packed, blockIdx.y * WARP_COLUMNS + warp_column);
  store_gradient(sums, KIND, before, corner, tiles, own, active, warp_row, channel, plain, product);
  if constexpr (KIND + 1 < KINDS)
    send_back_kinds<KIND + 1>(before, corner, tiles, own, tile, active, rows, line, packed, warp_row, warp_column,
                              channel, plain, product);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) convolve_back(
    const Number* given, const Number* outputs, const float* kept, const float* sums, const float* weights,
    float* gradient, const Number* packed, const Number* inputs, const Number* outputs_before,
    const float* kept_before, const Number* past, Number* found, float* sums_before, float* parts, int blocks, int norm,
    int norm_before, int images, int height, int width, int lines, int columns, int group, int normed, int shortcut) {
  __shared__ __align__(16) Number memory[TILES_SIZE > SUMS_SIZE ? TILES_SIZE : SUMS_SIZE];
  __shared__ float back[4][OUT], normal[4][SLICE];
  __shared__ float of_warps[WARP_ROWS][2][SLICE];
  __shared__ int row_of[TILE];
  Number* active = memory + MOST_ROWS * PITCH;
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 / WARP_COLUMNS;
  const int warp_column = threadIdx.x / 32 % WARP_COLUMNS, channel = warp_column * 16 + lane % 4 * 4;
  const Tensor input_of = {images, height, width}, of = {images, (height - 1) / STRIDE + 1, (width - 1) / STRIDE + 1};
  const Tiles tiles(of.images, of.height, of.width, lines, columns, group);
  const Box box(lines + 3 - STRIDE, columns + 3 - STRIDE), own(lines, columns);
  find_gradient_factors<OUT>(sums, blocks, kept, weights, norm, (float)images * of.height * of.width, gradient, back);
  if (threadIdx.x < SLICE) {
    const int c = threadIdx.x, its = blockIdx.y * SLICE + c;
    normal[0][c] = kept_before[its];
    normal[1][c] = kept_before[IN + its];
    normal[2][c] = weights[norm_before + its] * kept_before[IN + its];
    normal[3][c] = weights[norm_before + IN + its];
  }
  for (int k = threadIdx.x; k < WARP_ROWS * 2 * SLICE; k += THREADS) (&of_warps[0][0][0])[k] = 0;
  // Positions beyond the tile have any gradient, since their inputs are 0.
  for (int row = threadIdx.x; row < TILE; row += THREADS)
    row_of[row] = box.row(own.place(row < tiles.size() ? row : 0)) * PITCH;
  __syncthreads();
  int rows[ROW_TILES][ROWS_OF_LANE];
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
    for (int k = 0; k < ROWS_OF_LANE; k++)
      rows[t][k] = row_of[(warp_row % WARP_ROWS * ROW_TILES + t) * 16 + lane_row(lane, k)] + lane_start(lane);
  const Before before = {outputs_before, past, found, normal, input_of, of, shortcut > 0};
  float weight_sums[9][8] = {};
  for (int number = blockIdx.x; number < tiles.count; number += gridDim.x) {
    const Place corner = tiles.corner(number);
    __syncthreads();  // the tile before was read
    load_gradient(memory, corner, tiles.group, box, given, outputs, of, back);
    load_inputs(active, corner, tiles, own, inputs, input_of, normal, normed);
    __syncthreads();
    if (warp_row < WARP_ROWS) {
      float plain[4] = {}, product[4] = {};
      send_back_kinds<0>(before, corner, tiles, own, memory, active, rows, box.columns, packed, warp_row, warp_column,
                         channel, plain, product);
      add_sums(plain, product, warp_row, channel, of_warps);
    }
    add_weights(weight_sums, memory, active, row_of, box.columns, (tiles.size() + 15) / 16);
  }
  store_sums(of_warps, sums_before);
  store_weights(weight_sums, (float*)memory, parts);
}
