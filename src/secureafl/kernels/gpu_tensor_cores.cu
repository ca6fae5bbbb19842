// Numbers in memory and products of 16 x 16 x 16 on tensor cores, for the kernels of ResNet-20.
//
// With MIXED numbers are bfloat16, given by their bits, otherwise float32, which products round to TF32; sums are
// float32. A warp multiplies 16 rows of 16 numbers by 16 columns. Which thread has which of them is the hardware's
// choice for rows; the columns are packed so that the four sums that a thread has of a row are neighbours in memory.

#if MIXED
typedef unsigned short Number;
#define PAD 8            // numbers after each row in shared memory: 16 bytes, so that eight rows lie in different banks
#define ROWS_OF_LANE 1   // of each 16 that a thread names to load them
#define COLUMN_PARTS 4   // registers of 16 x 16 columns
#define ROW_PARTS 4      // registers of 16 x 16 rows
#define POSITIONS_OF_LANE 1
#else
typedef float Number;
#define PAD 4
#define ROWS_OF_LANE 2
#define COLUMN_PARTS 8
#define ROW_PARTS 8
#define POSITIONS_OF_LANE 4
#endif

#ifndef EMULATED  // a test runs these kernels on a CPU and brings its own versions of these instructions

__device__ unsigned bfloat16_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ unsigned to_tf32(float value) {
  unsigned found;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(value));
  return found;
}

// What follows reads memory anew. Numbers that a loop needs again and again would otherwise stay in registers, of which
// sums leave too few.
__device__ void read_again() { asm volatile("" ::: "memory"); }

// Four matrices of 8 x 8 numbers of 16 bits, of which each thread names a row of 16 bytes.
__device__ void load_matrices(unsigned* parts, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}

__device__ void load_transposed(unsigned* parts, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}

// Adds a product of 16 x 16 by 16 x 8 in bfloat16.
__device__ void multiply_bfloat16(float* sums, const unsigned* rows, const unsigned* columns) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));
}

// Adds a product of 16 x 8 by 8 x 8 in TF32.
__device__ void multiply_tf32(float* sums, const unsigned* rows, const unsigned* columns) {
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));
}

#endif

// COUNT numbers as they lie in memory, 16 bytes at a time, or 8 where that is all.
template <int COUNT>
struct Run {
  static const int WORDS = COUNT * sizeof(Number) / 4;
  unsigned word[WORDS];

  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < WORDS; k++) word[k] = 0;
  }

  // Of memory that no thread of this launch writes.
  __device__ void load(const Number* from) {
#pragma unroll
    for (int k = 0; k < WORDS; k += 4)
      if (WORDS == 2) {
        const uint2 two = __ldg((const uint2*)from);
        word[0] = two.x, word[1] = two.y;
      } else {
        const uint4 four = __ldg((const uint4*)from + k / 4);
        word[k] = four.x, word[k + 1] = four.y, word[k + 2] = four.z, word[k + 3] = four.w;
      }
  }

  __device__ void load_shared(const Number* from) {
#pragma unroll
    for (int k = 0; k < WORDS; k += 4)
      if (WORDS == 2) {
        const uint2 two = *(const uint2*)from;
        word[0] = two.x, word[1] = two.y;
      } else {
        const uint4 four = ((const uint4*)from)[k / 4];
        word[k] = four.x, word[k + 1] = four.y, word[k + 2] = four.z, word[k + 3] = four.w;
      }
  }

  __device__ void store(Number* to) const {
#pragma unroll
    for (int k = 0; k < WORDS; k += 4)
      if (WORDS == 2) {
        *(uint2*)to = make_uint2(word[0], word[1]);
      } else {
        ((uint4*)to)[k / 4] = make_uint4(word[k], word[k + 1], word[k + 2], word[k + 3]);
      }
  }

  __device__ float get(int k) const {
#if MIXED
    return __uint_as_float(k % 2 ? word[k / 2] & 0xffff0000u : word[k / 2] << 16);
#else
    return __uint_as_float(word[k]);
#endif
  }

  __device__ void set(const float* values) {
#if MIXED
#pragma unroll
    for (int k = 0; k < WORDS; k++) word[k] = bfloat16_pair(values[2 * k], values[2 * k + 1]);
#else
#pragma unroll
    for (int k = 0; k < WORDS; k++) word[k] = __float_as_uint(values[k]);
#endif
  }

  // Round to what products take.
  __device__ void to_operand() {
#if !MIXED
#pragma unroll
    for (int k = 0; k < WORDS; k++) word[k] = to_tf32(__uint_as_float(word[k]));
#endif
  }
};

__device__ float relu(float value) { return value < 0 ? 0 : value; }  // what is not a number passes

// Which row and column of 16 x 16 packed numbers is the one at this place among a lane's eight.
__device__ int packed_row(int lane, int place) {
  const int thread = lane % 4, low = place % 4;
  return MIXED ? 2 * thread + 8 * (low / 2) + low % 2 : 4 * thread + low;
}
__device__ int packed_column(int lane, int place) { return lane / 8 * 4 + place / 4 * 2 + lane / 4 % 2; }

// Which of 16 rows this is of those that a lane names, and from which of 16 numbers on.
__device__ int lane_row(int lane, int k) { return MIXED ? lane % 16 : lane / 4 + 8 * k; }
__device__ int lane_start(int lane) { return MIXED ? lane / 16 * 8 : lane % 4 * 4; }

// Loads 16 rows of 16 numbers; `rows` says where a lane's rows begin, `from` at which number.
__device__ void load_rows(unsigned* parts, const Number* shared, const int* rows, int from) {
#if MIXED
  load_matrices(parts, shared + rows[0] + from);
#else
  Run<4> low, high;
  low.load_shared(shared + rows[0] + from);
  high.load_shared(shared + rows[1] + from);
#pragma unroll
  for (int k = 0; k < 4; k++) parts[2 * k] = low.word[k], parts[2 * k + 1] = high.word[k];
#endif
}

// Adds 16 rows times 16 packed columns; a thread's sums of its first row are 0, 1, 4 and 5, of its second the others.
__device__ void multiply(float* sums, const unsigned* rows, const unsigned* columns) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
#if MIXED
    multiply_bfloat16(sums + 4 * half, rows, columns + 2 * half);
#else
    multiply_tf32(sums + 4 * half, rows, columns + 4 * half);
    multiply_tf32(sums + 4 * half, rows + 4, columns + 4 * half + 2);
#endif
  }
}

// For products that add up over positions, whose numbers lie side by side in a row of shared memory: which of 16
// positions this is of those that a lane names, on the left and on the right of the product, and from which channel on.
__device__ int left_position(int lane, int k) { return MIXED ? lane % 8 + lane / 16 * 8 : lane % 4 + 4 * k; }
__device__ int right_position(int lane, int k) { return MIXED ? lane % 16 : lane % 4 + 4 * k; }
__device__ int left_start(int lane) { return MIXED ? lane / 8 % 2 * 8 : lane / 4; }
__device__ int right_start(int lane) { return MIXED ? lane / 16 * 8 : lane / 4; }

// 16 channels of 16 positions as rows of a product.
__device__ void load_left(unsigned* parts, const Number* shared, const int* rows, int from) {
#if MIXED
  load_transposed(parts, shared + rows[0] + from);
#else
#pragma unroll
  for (int k = 0; k < 4; k++) {
    parts[2 * k] = __float_as_uint(shared[rows[k] + from]);
    parts[2 * k + 1] = __float_as_uint(shared[rows[k] + from + 8]);
  }
#endif
}

// 16 channels of 16 positions as columns; sums then are where `sum_row` and `sum_column` say.
__device__ void load_right(unsigned* parts, const Number* shared, const int* rows, int from) {
#if MIXED
  load_transposed(parts, shared + rows[0] + from);
#else
#pragma unroll
  for (int k = 0; k < 4; k++) {
    parts[k] = __float_as_uint(shared[rows[k] + from]);
    parts[k + 4] = __float_as_uint(shared[rows[k] + from + 8]);
  }
#endif
}
__device__ int sum_row(int lane, int pair) { return lane / 4 + pair % 2 * 8; }
__device__ int sum_column(int lane, int pair) { return pair / 2 * 8 + lane % 4 * 2; }
