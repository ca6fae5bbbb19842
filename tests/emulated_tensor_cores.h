// The instructions of `gpu_tensor_cores.cu` on a CPU, after `emulated_cuda.h`. With EXACT, products in TF32 are in float32.

#define EMULATED 1

namespace emulator {

const unsigned TF32 = EXACT ? 0xffffffffu : 0xffffe000u;  // what products see of a number

struct Four { const void* row; unsigned* parts; };
struct Product { float* sums; const unsigned *rows, *columns; };

// Element k of 16-bit numbers in registers.
inline float bfloat16_of(const unsigned* parts, int k) {
  return with_bits_of<float>(k % 2 ? parts[k / 2] & 0xffff0000u : parts[k / 2] << 16);
}

template <bool transposed>
void load_four(void** arguments) {
  unsigned short rows[4][8][8];
  for (int lane = 0; lane < 32; lane++) {
    const void* row = ((Four*)arguments[lane])->row;
    if ((size_t)row % 16) fail("a row of a matrix is not aligned");
    if (row < (void*)__start_of_block || row >= (void*)__stop_of_block) fail("a row is not in shared memory");
    memcpy(rows[lane / 8][lane % 8], row, 16);
  }
  for (int lane = 0; lane < 32; lane++)
    for (int k = 0; k < 4; k++) {
      const int row = lane / 4, column = lane % 4 * 2;
      const unsigned low = transposed ? rows[k][column][row] : rows[k][row][column];
      const unsigned high = transposed ? rows[k][column + 1][row] : rows[k][row][column + 1];
      ((Four*)arguments[lane])->parts[k] = low | high << 16;
    }
}

// Adds rows times columns, as they were collected from the lanes.
template <int DEPTH>
void add_products(void** arguments, const float (*rows)[DEPTH], const float (*columns)[DEPTH]) {
  for (int lane = 0; lane < 32; lane++)
    for (int k = 0; k < 4; k++) {
      const float *row = rows[lane / 4 + k / 2 * 8], *column = columns[lane % 4 * 2 + k % 2];
      float sum = 0;
      for (int d = 0; d < DEPTH; d++) sum += row[d] * column[d];
      ((Product*)arguments[lane])->sums[k] += sum;
    }
}

inline void product_of_bfloat16(void** arguments) {
  float rows[16][16], columns[8][16];
  for (int lane = 0; lane < 32; lane++) {
    const Product* its = (Product*)arguments[lane];
    for (int k = 0; k < 8; k++)
      rows[lane / 4 + k / 2 % 2 * 8][lane % 4 * 2 + k % 2 + k / 4 * 8] = bfloat16_of(its->rows, k);
    for (int k = 0; k < 4; k++) columns[lane / 4][lane % 4 * 2 + k % 2 + k / 2 * 8] = bfloat16_of(its->columns, k);
  }
  add_products<16>(arguments, rows, columns);
}

inline void product_of_tf32(void** arguments) {
  float rows[16][8], columns[8][8];
  for (int lane = 0; lane < 32; lane++) {
    const Product* its = (Product*)arguments[lane];
    for (int k = 0; k < 4; k++)
      rows[lane / 4 + k % 2 * 8][lane % 4 + k / 2 * 4] = with_bits_of<float>(its->rows[k] & TF32);
    for (int k = 0; k < 2; k++) columns[lane / 4][lane % 4 + k * 4] = with_bits_of<float>(its->columns[k] & TF32);
  }
  add_products<8>(arguments, rows, columns);
}

}  // namespace emulator

inline unsigned to_bfloat16(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned bfloat16_pair(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
inline unsigned to_tf32(float value) {
  const unsigned bits = __float_as_uint(value);
  if (EXACT) return bits;
  return __builtin_isfinite(value) ? (bits + 0x1000) & 0xffffe000u : value != value ? 0x7fffffff : bits;
}
inline void read_again() {}
inline void load_matrices(unsigned* parts, const void* row) {
  emulator::Four given = {row, parts};
  emulator::with_warp(emulator::load_four<false>, &given);
}
inline void load_transposed(unsigned* parts, const void* row) {
  emulator::Four given = {row, parts};
  emulator::with_warp(emulator::load_four<true>, &given);
}
inline void multiply_bfloat16(float* sums, const unsigned* rows, const unsigned* columns) {
  emulator::Product given = {sums, rows, columns};
  emulator::with_warp(emulator::product_of_bfloat16, &given);
}
inline void multiply_tf32(float* sums, const unsigned* rows, const unsigned* columns) {
  emulator::Product given = {sums, rows, columns};
  emulator::with_warp(emulator::product_of_tf32, &given);
}
