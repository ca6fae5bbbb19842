// The way back through a 3 x 3 convolution of ResNet-20, compiled after `gpu_tensor_cores.cu` and `gpu_tiles.cu`.
//
// A block brings a tile of the gradient of the convolution's outputs with its rim into shared memory, through the
// batch normalisation after it, and the convolution's inputs there. Both products take them from there: the gradient of
// the inputs, which goes on past the ReLU that made them and leaves the two sums that the normalisation before needs,
// and that of the weights, which each block adds up over its tiles. A second coordinate of the grid cuts the inputs'
// channels. With stride 2 inputs are of four kinds, by whether line and column are odd, and each tap sees one kind.
// IN, OUT, STRIDE, SLICE, sizes of images and tiles are defined by `kernels.gpu_resnet`.

#define PITCH (OUT + PAD)
#define INPUT_PITCH (SLICE + PAD)
#define ALL (16 * WARP_ROWS * ROW_TILES)  // rows of inputs of each kind, those beyond the tile too
#define KINDS (STRIDE * STRIDE)
#define AT_ONCE (MIXED ? 2 : 1)
#define WARP_COLUMNS (SLICE / 16)
#define ROWS (2 * ROW_TILES)  // that a thread has sums of
// Of the weights' gradient a warp has 16 x 16 of each tap. Where there are more warps than that, one half has the first
// taps, and more of them share the positions.
#define LEFT_WARPS (OUT / 16)
#define PARTS (LEFT_WARPS * WARP_COLUMNS)
#define TAP_GROUPS (PARTS < WARPS ? 2 : 1)
#define TAPS ((9 + TAP_GROUPS - 1) / TAP_GROUPS)  // of the first group; the second has the rest
#define SHARES (WARPS / PARTS / TAP_GROUPS)
#define TAPS_AT_ONCE 3                // whose sums over warps fit into shared memory
#define SUMS (TAPS_AT_ONCE * 8 * 32)  // of a warp
#define TILES_SIZE (MOST_ROWS * PITCH + KINDS * ALL * INPUT_PITCH)
#define SUMS_SIZE (SHARES > 1 ? WARPS * SUMS * 4 / (int)sizeof(Number) : 0)
#define BLOCKS_AT_ONCE (MIXED && TAP_GROUPS > 1 ? 3 : 2)  // on a processor: sums of weights take most registers

typedef Sized<HEIGHT, WIDTH> Inputs;
typedef Sized<(HEIGHT - 1) / STRIDE + 1, (WIDTH - 1) / STRIDE + 1> Outputs;
typedef Cut<(HEIGHT - 1) / STRIDE + 1, (WIDTH - 1) / STRIDE + 1, LINES, COLUMNS, GROUP> Tile;  // of outputs
typedef Box<LINES, COLUMNS> Own;
typedef Box<LINES + 3 - STRIDE, COLUMNS + 3 - STRIDE> Seen;

// Of which kind the inputs are that a tap sees, and which row of the gradient they see through it.
__device__ constexpr int kind_of(int tap) {
  return STRIDE == 1 ? 0 : (tap / 3 != 1) * 2 + (tap % 3 != 1);
}
__device__ constexpr int line_of(int y) { return STRIDE == 1 ? 2 - y : y == 0; }
__device__ constexpr int row_of_tap(int y, int x) { return (line_of(y) * (COLUMNS + 3 - STRIDE) + line_of(x)) * PITCH; }

// Where the inputs of one kind are that belong to a row of a tile of outputs.
__device__ Place input_of(const Tile& own, int row, int kind) {
  const Place output = own.place(row);
  return {output.image, output.y * STRIDE + kind / 2, output.x * STRIDE + kind % 2};
}
__device__ bool has_input(const Tile& own, int row, int kind) {
  return STRIDE == 1 ? own.has(row) : row < Tile::SIZE && Inputs{own.images}.has(input_of(own, row, kind));
}
__device__ int input_position(const Tile& own, int row, int kind) {
  return STRIDE == 1 ? own.position(row) : Inputs{own.images}.position(input_of(own, row, kind));
}

#define SEEN_ROWS (GROUP * Seen::SIZE)
#define GRADIENT_THREADS (THREADS / (OUT / 8))  // that take eight channels each of different rows
#define INPUT_THREADS (THREADS / (SLICE / 8))

// Eight channels of some rows of the gradient of the outputs, and of the outputs, on their way from memory.
struct Gradients {
  Run<8> given[AT_ONCE], output[AT_ONCE];
  bool known[AT_ONCE];
};

__device__ Gradients load_gradient(const Tile& own, int first, const Number* given, const Number* outputs) {
  const int channel = threadIdx.x % (OUT / 8) * 8;
  const Outputs of = {own.images};
  const Place start = {own.corner.image, own.corner.y - (STRIDE == 1), own.corner.x - (STRIDE == 1)};
  Gradients loads;
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++) {
    const int row = first + k * GRADIENT_THREADS;
    const Place place = start + Seen::place(row);
    loads.known[k] = row < SEEN_ROWS && of.has(place);
    loads.given[k].clear(), loads.output[k].clear();
    const int at = of.position(place) * OUT + channel;
    if (loads.known[k]) loads.given[k].load(given + at), loads.output[k].load(outputs + at);
  }
  return loads;
}

// Puts rows of the gradient into a tile, brought through the normalisation.
__device__ void put_gradient(Number* tile, Gradients& loads, int first, const float (*back)[OUT]) {
  const int channel = threadIdx.x % (OUT / 8) * 8;
  float factor[8], slope[8], off[8];
  load_floats<8>(factor, back[0] + channel), load_floats<8>(slope, back[1] + channel);
  load_floats<8>(off, back[2] + channel);
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++) {
    const int row = first + k * GRADIENT_THREADS;
    Run<8>& found = loads.given[k];
    float values[8];
#pragma unroll
    for (int c = 0; c < 8; c++)
      values[c] = gradient_before(found.get(c), loads.output[k].get(c), factor[c], slope[c], off[c]);
    if (loads.known[k]) found.set(values);
    found.to_operand();
    if (row < SEEN_ROWS) found.store(tile + row * PITCH + channel);
  }
}

// Eight channels of some rows of a tile's own inputs, kind by kind; where there are none, zeros.
struct Actives {
  Run<8> found[AT_ONCE];
  bool known[AT_ONCE];
};

__device__ Actives load_inputs(const Tile& own, int first, const Number* inputs) {
  const int channel = threadIdx.x % (SLICE / 8) * 8;
  Actives loads;
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++) {
    const int row = first + k * INPUT_THREADS, kind = row / ALL;
    loads.known[k] = row < KINDS * ALL && has_input(own, row % ALL, kind);
    loads.found[k].clear();
    if (loads.known[k])
      loads.found[k].load(inputs + input_position(own, row % ALL, kind) * IN + blockIdx.y * SLICE + channel);
  }
  return loads;
}

// Puts inputs into a tile; with `normed` they are normalised first.
__device__ void put_inputs(Number* tile, Actives& loads, int first, const float (*before)[SLICE], bool normed) {
  const int channel = threadIdx.x % (SLICE / 8) * 8;
  float factor[8], shift[8];
  load_floats<8>(factor, before[2] + channel), load_floats<8>(shift, before[3] + channel);
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++) {
    const int row = first + k * INPUT_THREADS;
    Run<8>& found = loads.found[k];
    float values[8];
#pragma unroll
    for (int c = 0; c < 8; c++) values[c] = relu(normalised(found.get(c), factor[c], shift[c]));
    if (loads.known[k] && normed) found.set(values);
    found.to_operand();
    if (row < KINDS * ALL) found.store(tile + row * INPUT_PITCH + channel);
  }
}

// The gradient of inputs of one kind, which the taps that see them send back.
template <int KIND>
__device__ void send_back(float (*sums)[8], const Number* tile, const int (*rows)[ROWS_OF_LANE], const Number* packed,
                          int group) {
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
            load_rows(left, tile, rows[t], row_of_tap(y, x) + 16 * k);
            multiply(sums[t], left, columns.word);
          }
        }
}

// Where gradients of inputs go, and what they are multiplied with on the way.
struct Before {
  const Number* outputs;  // of the convolution before
  const Number* past;     // gradient past the shortcut, if there is one
  Number* found;
  const float* mean;
  bool shortcut;
};

// Adds the shortcut's gradient, passes the ReLU, stores the gradient, and adds to its four sums and its products with
// how far outputs are from their mean.
__device__ void store_gradient(const float (*sums)[8], int kind, const Before& before, const Tile& own,
                               const Number* active, int warp_row, int channel, float* found_sums) {
  const int slice = blockIdx.y * SLICE + channel;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int row = warp_row * ROW_TILES * 16 + threadIdx.x % 32 / 4 + 8 * r;
    if (!has_input(own, row, kind)) continue;
    read_again();
    const int at = input_position(own, row, kind) * IN + slice;
    Run<4> cut, input, raw, found;
    cut.clear();
    raw.load(before.outputs + at);
    if (before.shortcut && kind == 0) cut.load(before.past + own.position(row) * OUT + (OUT - IN) / 2 + slice);
    input.load_shared(active + (kind * ALL + row) * INPUT_PITCH + channel);
    float values[4], mean[4];
    load_floats<4>(mean, before.mean + channel);
#pragma unroll
    for (int c = 0; c < 4; c++)
      values[c] = input.get(c) <= 0 ? 0 : sums[r / 2][c / 2 * 4 + r % 2 * 2 + c % 2] + cut.get(c);
    found.set(values);
    found.store(before.found + at);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      found_sums[c] += found.get(c);
      found_sums[4 + c] = fmaf(found.get(c), raw.get(c) - mean[c], found_sums[4 + c]);
    }
  }
}

// Writes the block's two sums of each channel.
__device__ void store_sums(const float (*of_warps)[2][SLICE], const float* inverse, float* sums) {
  __syncthreads();
  if (threadIdx.x >= 2 * SLICE) return;
  const int which = threadIdx.x / SLICE, c = threadIdx.x % SLICE;
  float total = 0;
  for (int k = 0; k < WARP_ROWS; k++) total += of_warps[k][which][c];
  sums[(blockIdx.x * 2 + which) * IN + blockIdx.y * SLICE + c] = which ? total * inverse[c] : total;
}

// Adds a tile's products of gradients and inputs for some taps; a warp has some of the positions.
template <int FIRST, int LAST>
__device__ void add_weights(float (*sums)[8], const Number* tile, const Number* active, const int* row_of, int share) {
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % PARTS;
  const int from = part % LEFT_WARPS * 16 + left_start(lane), start = part / LEFT_WARPS * 16 + right_start(lane);
#pragma unroll 1
  for (int step = share; step < (Tile::SIZE + 15) / 16; step += SHARES) {
    int left_rows[POSITIONS_OF_LANE], right_rows[POSITIONS_OF_LANE];
#pragma unroll
    for (int k = 0; k < POSITIONS_OF_LANE; k++) {
      left_rows[k] = row_of[step * 16 + left_position(lane, k)] + from;
      right_rows[k] = (step * 16 + right_position(lane, k)) * INPUT_PITCH + start;
    }
#pragma unroll
    for (int kind = 0; kind < KINDS; kind++) {
      unsigned right[COLUMN_PARTS];
      load_right(right, active, right_rows, kind * ALL * INPUT_PITCH);
#pragma unroll
      for (int tap = FIRST; tap < LAST; tap++)
        if (kind_of(tap) == kind) {
          unsigned left[ROW_PARTS];
          load_left(left, tile, left_rows, row_of_tap(tap / 3, tap % 3));
          multiply(sums[tap - FIRST], left, right);
        }
    }
  }
}

// Where in a block's part of the weights' gradient a lane has two sums that lie side by side.
__device__ float2* weights_at(float* parts, int tap, int part, int pair) {
  const int lane = threadIdx.x % 32, output = part % LEFT_WARPS * 16 + sum_row(lane, pair);
  const int input = blockIdx.y * SLICE + part / LEFT_WARPS * 16 + sum_column(lane, pair);
  return (float2*)(parts + ((blockIdx.x * 9 + tap) * OUT + output) * IN + input);
}

// Writes the block's part of the weights' gradient, by tap, output and input, where no warps share one.
__device__ void store_weights(const float (*sums)[8], int first, float* parts) {
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
      if (first + tap < 9)
        *weights_at(parts, first + tap, threadIdx.x / 32 % PARTS, pair) =
            make_float2(sums[tap][2 * pair], sums[tap][2 * pair + 1]);
}

// The same, where a part is the sum over the warps that share it; all groups of taps at a time.
__device__ void store_shared_weights(const float (*sums)[8], float* shared, float* parts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int first = 0; first < TAPS; first += TAPS_AT_ONCE) {
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < TAPS_AT_ONCE && first + tap < TAPS; tap++)
#pragma unroll
      for (int k = 0; k < 8; k++) shared[warp * SUMS + (tap * 8 + k) * 32 + lane] = sums[first + tap][k];
    __syncthreads();
#pragma unroll 1
    for (int line = warp; line < TAP_GROUPS * PARTS * TAPS_AT_ONCE * 4; line += WARPS) {
      const int pair = line % 4, tap = line / 4 % TAPS_AT_ONCE, part = line / (TAPS_AT_ONCE * 4) % PARTS;
      const int group = line / (TAPS_AT_ONCE * 4) / PARTS, of = group * TAPS + first + tap;
      if (first + tap >= TAPS || of >= 9) continue;
      float2 total = make_float2(0, 0);
#pragma unroll
      for (int share = 0; share < SHARES; share++) {
        const float* its = shared + ((group * SHARES + share) * PARTS + part) * SUMS + (tap * 8 + 2 * pair) * 32 + lane;
        total.x += its[0], total.y += its[32];
      }
      *weights_at(parts, of, part, pair) = total;
    }
  }
}

template <int KIND>
__device__ void send_back_kinds(const Before& before, const Tile& own, const Number* tile, const Number* active,
                                const int (*rows)[ROWS_OF_LANE], const Number* packed, int warp_row, int warp_column,
                                int channel, float* found_sums) {
  float sums[ROW_TILES][8] = {};
  send_back<KIND>(sums, tile, rows, packed, blockIdx.y * WARP_COLUMNS + warp_column);
  store_gradient(sums, KIND, before, own, active, warp_row, channel, found_sums);
  if constexpr (KIND + 1 < KINDS)
    send_back_kinds<KIND + 1>(before, own, tile, active, rows, packed, warp_row, warp_column, channel, found_sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) convolve_back(
    const Number* given, const Number* outputs, const float* kept, const float* sums, const float* weights,
    float* gradient, const Number* packed, const Number* inputs, const Number* outputs_before,
    const float* kept_before, const Number* past, Number* found, float* sums_before, float* parts, int blocks, int norm,
    int norm_before, int images, int normed, int shortcut) {
  __shared__ __align__(16) Number memory[TILES_SIZE > SUMS_SIZE ? TILES_SIZE : SUMS_SIZE];
  __shared__ __align__(16) float back[3][OUT], normal[4][SLICE];
  __shared__ float of_warps[WARP_ROWS][2][SLICE];
  __shared__ int row_of[ALL];
  Number* active = memory + MOST_ROWS * PITCH;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_row = warp / WARP_COLUMNS;
  const int warp_column = warp % WARP_COLUMNS, channel = warp_column * 16 + lane % 4 * 4;
  const int share = warp / PARTS % SHARES, tap_group = warp / PARTS / SHARES;
  const int gradient_row = threadIdx.x / (OUT / 8), input_row = threadIdx.x / (SLICE / 8);
  // The first rows are under way while the block finds the factors.
  Gradients gradients = load_gradient(Tile(blockIdx.x, images), gradient_row, given, outputs);
  Actives actives = load_inputs(Tile(blockIdx.x, images), input_row, inputs);
  find_gradient_factors<OUT>(sums, blocks, kept, weights, norm, (float)images * Outputs().position({1, 0, 0}), gradient,
                             back);
  if (threadIdx.x < SLICE) {
    const int c = threadIdx.x, its = blockIdx.y * SLICE + c;
    normal[0][c] = kept_before[its];
    normal[1][c] = kept_before[IN + its];
    normal[2][c] = weights[norm_before + its] * kept_before[IN + its];
    normal[3][c] = shift_past(kept_before[its], normal[2][c], weights[norm_before + IN + its]);
  }
  for (int k = threadIdx.x; k < WARP_ROWS * 2 * SLICE; k += THREADS) (&of_warps[0][0][0])[k] = 0;
  // Positions beyond the tile have any gradient, since their inputs are 0.
  for (int row = threadIdx.x; row < ALL; row += THREADS)
    row_of[row] = Seen::row(Own::place(row < Tile::SIZE ? row : 0)) * PITCH;
  __syncthreads();
  int rows[ROW_TILES][ROWS_OF_LANE];
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
    for (int k = 0; k < ROWS_OF_LANE; k++)
      rows[t][k] = row_of[(warp_row % WARP_ROWS * ROW_TILES + t) * 16 + lane_row(lane, k)] + lane_start(lane);
  const Before before = {outputs_before, past, found, normal[0], shortcut > 0};
  float weight_sums[TAPS][8] = {};
  for (int number = blockIdx.x;;) {
    const Tile own(number, images);
#pragma unroll 1
    for (int first = input_row;;) {
      put_inputs(active, actives, first, normal, normed);
      first += AT_ONCE * INPUT_THREADS;
      if (first >= KINDS * ALL) break;
      actives = load_inputs(own, first, inputs);
    }
#pragma unroll 1
    for (int first = gradient_row;;) {
      put_gradient(memory, gradients, first, back);
      first += AT_ONCE * GRADIENT_THREADS;
      if (first >= SEEN_ROWS) break;
      gradients = load_gradient(own, first, given, outputs);
    }
    __syncthreads();
    if (warp_row < WARP_ROWS) {
      float found_sums[8] = {};
      send_back_kinds<0>(before, own, memory, active, rows, packed, warp_row, warp_column, channel, found_sums);
      // They wait in shared memory: registers are few.
      const float sum = sum_over_rows(found_sums);
      of_warps[warp_row][lane / 16][channel + lane / 4 % 4] += sum;
    }
    if (tap_group == 0)
      add_weights<0, TAPS>(weight_sums, memory, active, row_of, share);
    else
      add_weights<TAPS, 9>(weight_sums, memory, active, row_of, share);
    number += gridDim.x;
    if (number >= Tile::count(images)) break;
    gradients = load_gradient(Tile(number, images), gradient_row, given, outputs);
    actives = load_inputs(Tile(number, images), input_row, inputs);
    __syncthreads();  // the tile was read
  }
  store_sums(of_warps, normal[1], sums_before);
  if (SHARES > 1)
    store_shared_weights(weight_sums, (float*)memory, parts);
  else
    store_weights(weight_sums, tap_group * TAPS, parts);
}
