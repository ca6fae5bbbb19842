// A 3 x 3 convolution of ResNet-20 with statistics of its outputs, compiled after `gpu_tensor_cores.cu` and
// `gpu_tiles.cu`.
//
// Its inputs are what the convolution before gave. A block brings a tile of them with its rim into shared memory, and
// normalises them on the way; where they end a block of the network, it also adds the shortcut, and writes those that
// are its own to memory. Then each of the nine taps is a product of rows of that tile, as they lie there.
// IN, OUT, STRIDE, sizes of images and tiles are defined by `kernels.gpu_resnet`.

#define PITCH (IN + PAD)
#define CHUNKS (IN / 8)  // of eight channels, which a thread loads at a time
#define AT_ONCE (MIXED ? 4 : 2)
#define WARP_COLUMNS (WARPS / WARP_ROWS)
#define WARP_GROUPS (OUT / 16 / WARP_COLUMNS)  // of 16 channels
#define ROWS (2 * ROW_TILES)                   // that a thread has sums of

typedef Sized<HEIGHT, WIDTH> Inputs;
typedef Cut<(HEIGHT - 1) / STRIDE + 1, (WIDTH - 1) / STRIDE + 1, LINES, COLUMNS, GROUP> Tile;  // of outputs
typedef Box<LINES, COLUMNS> Own;
typedef Box<STRIDE * (LINES - 1) + 3, STRIDE * (COLUMNS - 1) + 3> Seen;
#define SEEN_ROWS (GROUP * Seen::SIZE)
#define LOADED (AT_ONCE * (THREADS / CHUNKS))  // rows that a block loads at a time

// Eight channels of some rows of a tile, on their way from memory.
struct Loads {
  Run<8> found[AT_ONCE], added[AT_ONCE];
  int at[AT_ONCE];  // less than 0: there is no such place
  bool own[AT_ONCE];
};

// Where the rows of a tile come from.
struct Source {
  const Number* inputs;
  Inputs of;
  Shortcut shortcut;
  bool written;  // whether those of the tile's own are to be kept

  __device__ Loads load(Place corner, int first) const {
    const int channel = threadIdx.x % CHUNKS * 8, step = THREADS / CHUNKS;
    const Place start = {corner.image, corner.y * STRIDE - 1, corner.x * STRIDE - 1};
    const bool adds = shortcut.has(channel, IN);
    Loads loads;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const Place local = Seen::place(first + k * step), place = start + local;
      const bool there = first + k * step < SEEN_ROWS && of.has(place);
      loads.at[k] = there ? of.position(place) * IN + channel : -1;
      loads.own[k] = written && there && (unsigned)(local.y - 1) < STRIDE * LINES &&
                     (unsigned)(local.x - 1) < STRIDE * COLUMNS;
      loads.found[k].clear(), loads.added[k].clear();
      if (there) loads.found[k].load(inputs + loads.at[k]);
      if (there && adds) loads.added[k].load(shortcut.at(place, channel, IN));
    }
    return loads;
  }
};

// Puts rows into a tile, normalised; writes those that are to be kept.
__device__ void put(Number* tile, Loads& loads, int first, const float (*normal)[IN], Number* active) {
  const int channel = threadIdx.x % CHUNKS * 8, step = THREADS / CHUNKS;
  float factor[8], shift[8];
  load_floats<8>(factor, normal[0] + channel), load_floats<8>(shift, normal[1] + channel);
#pragma unroll
  for (int k = 0; k < AT_ONCE; k++) {
    Run<8>& found = loads.found[k];
    float values[8];
#pragma unroll
    for (int c = 0; c < 8; c++)
      values[c] = relu(normalised(found.get(c), factor[c], shift[c]) + loads.added[k].get(c));
    if (loads.at[k] >= 0) found.set(values);
    if (loads.own[k]) found.store(active + loads.at[k]);
    found.to_operand();
    if (first + k * step < SEEN_ROWS) found.store(tile + (first + k * step) * PITCH + channel);
  }
}

// Adds the products of all taps; `rows` says where in the tile the first tap's row of each output begins.
__device__ void add_taps(float (*sums)[WARP_GROUPS][8], const Number* tile, const int (*rows)[ROWS_OF_LANE],
                         const Number* packed, int warp_column) {
  const int line = STRIDE * (COLUMNS - 1) + 3;
#pragma unroll 1  // more would not fit into registers
  for (int y = 0; y < 3; y++)
#pragma unroll
    for (int x = 0; x < 3; x++)
#pragma unroll
      for (int k = 0; k < IN / 16; k++) {
        Run<8> columns[WARP_GROUPS];
        const int block = ((y * 3 + x) * (IN / 16) + k) * (OUT / 16) + warp_column * WARP_GROUPS;
#pragma unroll
        for (int q = 0; q < WARP_GROUPS; q++) columns[q].load(packed + (block + q) * 256 + threadIdx.x % 32 * 8);
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
          unsigned left[ROW_PARTS];
          load_rows(left, tile, rows[t], (y * line + x) * PITCH + 16 * k);
#pragma unroll
          for (int q = 0; q < WARP_GROUPS; q++) multiply(sums[t][q], left, columns[q].word);
        }
      }
}

// Stores a tile's outputs, and adds those to the statistics as they are stored.
__device__ void store_outputs(const float (*sums)[WARP_GROUPS][8], Found<OUT>& of_warp, const Tile& own,
                              Number* outputs, int warp_row, int warp_column, bool first) {
  const int channel = warp_column * WARP_GROUPS * 16 + threadIdx.x % 4 * 4;
  bool known[ROWS];
  int at[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int row = warp_row * ROW_TILES * 16 + threadIdx.x % 32 / 4 + 8 * r;
    known[r] = own.has(row);
    at[r] = own.position(row) * OUT + channel;
  }
  if (warp_column == 0) count_rows<ROWS>(of_warp, known, first);
#pragma unroll
  for (int q = 0; q < WARP_GROUPS; q++) {
    float values[ROWS][4];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      Run<4> found;
#pragma unroll
      for (int c = 0; c < 4; c++) values[r][c] = sums[r / 2][q][c / 2 * 4 + r % 2 * 2 + c % 2];
      found.set(values[r]);
      if (known[r]) found.store(outputs + at[r] + 16 * q);
#pragma unroll
      for (int c = 0; c < 4; c++) values[r][c] = found.get(c);
    }
    add_rows<ROWS>(of_warp, channel + 16 * q, values, known, first);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) convolve(
    const Number* inputs, const float* partial, float* kept, float* moved, const float* weights, const Number* block,
    Number* active, const Number* packed, Number* outputs, float* partial_out, int blocks, int norm, int running,
    int images, int written, int block_channels, int block_stride, int block_height, int block_width, double momentum,
    double epsilon) {
  __shared__ __align__(16) Number tile[MOST_ROWS * PITCH];
  __shared__ __align__(16) float normal[2][IN];
  __shared__ Found<OUT> of_warps[WARP_ROWS];
  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 / WARP_COLUMNS;
  const int warp_column = threadIdx.x / 32 % WARP_COLUMNS;
  const Shortcut shortcut = {block, block_height, block_width, block_channels, block_stride};
  const Source source = {inputs, {images}, shortcut, written > 0};
  const int mine = threadIdx.x / CHUNKS;
  // The first rows are under way while the block finds the normalisation.
  Loads loads = source.load(Tile(blockIdx.x, images).corner, mine);
  find_normalisation<IN>(
      {partial, kept, moved, blocks, norm, running, (float)momentum, (float)epsilon}, weights, normal);
  int rows[ROW_TILES][ROWS_OF_LANE];
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
    for (int k = 0; k < ROWS_OF_LANE; k++) {
      const int row = (warp_row * ROW_TILES + t) * 16 + lane_row(lane, k);
      const Place at = Own::place(row < Tile::SIZE ? row : 0);  // what is beyond the tile is not stored
      rows[t][k] = Seen::row({at.image, at.y * STRIDE, at.x * STRIDE}) * PITCH + lane_start(lane);
    }
  for (int number = blockIdx.x;;) {
    const Tile own(number, images);
#pragma unroll 1
    for (int first = mine;;) {
      put(tile, loads, first, normal, active);
      first += LOADED;
      if (first >= SEEN_ROWS) break;
      loads = source.load(own.corner, first);
    }
    __syncthreads();
    float sums[ROW_TILES][WARP_GROUPS][8] = {};
    add_taps(sums, tile, rows, packed, warp_column);
    store_outputs(sums, of_warps[warp_row], own, outputs, warp_row, warp_column, number == blockIdx.x);
    number += gridDim.x;
    if (number >= Tile::count(images)) break;
    loads = source.load(Tile(number, images).corner, mine);
    __syncthreads();  // the tile was read
  }
  store_statistics(of_warps, WARP_ROWS, partial_out);
}
