// Runs the blocks of a CUDA kernel one after another on a CPU, each thread on a stack of its own.
//
// A warp runs until all its threads wait for the block, so a missing barrier shows: other warps are far behind or
// ahead, in an order drawn anew each time. Before each block shared memory is filled with what is not a number.
// Instructions of a whole warp are carried out when its last thread has come to them. Accesses of 8 and 16 bytes are
// checked for alignment by the compiler's sanitizer. With EXACT products in TF32 are in float32.

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

extern "C" {  // not by <cmath>, which takes longer to compile than a kernel
float sqrtf(float), fmaf(float, float, float);
double sqrt(double), fmin(double, double), fmax(double, double);
}

#define EMULATED 1
#define __device__
#define __global__
#define __restrict__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("of_block")))

extern "C" char __start_of_block[], __stop_of_block[];

struct dim3 { int x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

const int MOST = 1024;  // threads of a block, and blocks of a grid
const size_t STACK = 1 << 16;
const unsigned TF32 = EXACT ? 0xffffffffu : 0xffffe000u;  // what products see of a number
enum State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED };
typedef void (*Together)(void** arguments);  // what a warp does together, with what each of its threads gave

struct Thread {
  ucontext_t start;
  jmp_buf at;
  bool started;
  State state;
  Together together;
  void* argument;
  int vote;
};

static Thread threads[MOST];
static char* stacks = (char*)malloc(MOST * STACK);
static jmp_buf scheduler;
static int current;
static void (*body)();
static unsigned long long random_state;

inline unsigned drawn(unsigned below) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(random_state >> 33) % below;
}

// The numbers below `count` in an order that is drawn.
inline void shuffle(int* order, int count) {
  for (int k = 0; k < count; k++) {
    const int other = drawn(k + 1);
    order[k] = order[other], order[other] = k;
  }
}

inline void fail(const char* message) {
  fprintf(stderr, "block %d %d, thread %d: %s\n", blockIdx.x, blockIdx.y, current, message);
  abort();
}

inline void wait(State state) {
  threads[current].state = state;
  if (!_setjmp(threads[current].at)) _longjmp(scheduler, 1);
}

inline void with_warp(Together together, void* argument) {
  threads[current].together = together, threads[current].argument = argument;
  wait(WAITS_FOR_WARP);
}

inline void run_body() {
  body();
  threads[current].state = ENDED;
  _longjmp(scheduler, 1);
}

inline void resume(int number) {
  current = number;
  threadIdx.x = number;
  Thread& thread = threads[number];
  thread.state = RUNS;
  if (_setjmp(scheduler)) return;
  if (thread.started) _longjmp(thread.at, 1);
  thread.started = true;
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = stacks + number * STACK, thread.start.uc_stack.ss_size = STACK;
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, run_body, 0);
  setcontext(&thread.start);
}

// Runs a warp until its threads wait for the block or have ended.
inline void run_warp(int first) {
  for (;;) {
    const int turn = drawn(32);
    for (int k = 0; k < 32; k++) resume(first + (k + turn) % 32);
    const State state = threads[first].state;
    void* arguments[32];
    for (int lane = 0; lane < 32; lane++) {
      current = first + lane;
      if (threads[current].state != state) fail("its warp does not come to the same barrier");
      if (state == WAITS_FOR_WARP && threads[current].together != threads[first].together)
        fail("its warp carries out another instruction");
      arguments[lane] = threads[current].argument;
    }
    if (state != WAITS_FOR_WARP) return;
    threads[first].together(arguments);
  }
}

inline void run_block() {
  memset(__start_of_block, 0xff, __stop_of_block - __start_of_block);
  const int warps = blockDim.x / 32;
  for (int k = 0; k < blockDim.x; k++) threads[k].started = false;
  for (;;) {
    int order[MOST];
    shuffle(order, warps);
    for (int k = 0; k < warps; k++) run_warp(32 * order[k]);
    for (current = 0; current < blockDim.x; current++)
      if (threads[current].state != threads[0].state) fail("its block does not come to the same barrier");
    if (threads[0].state == ENDED) return;
  }
}

template <typename... Parameters, size_t... places>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<places...>) {
  kernel(*(std::decay_t<Parameters>*)arguments[places]...);
}

template <typename... Parameters>
int count_parameters(void (*)(Parameters...)) { return sizeof...(Parameters); }

template <typename... Parameters>
void call(void (*kernel)(Parameters...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<Parameters...>());
}

inline void run(void (*of_thread)(), int across, int down, int size, unsigned seed) {
  body = of_thread, random_state = seed;
  blockDim = {size, 1, 1}, gridDim = {across, down, 1};
  if (size > MOST || across * down > MOST) fail("too many threads or blocks");
  int order[MOST];
  shuffle(order, across * down);
  for (int k = 0; k < across * down; k++) {
    blockIdx = {order[k] % across, order[k] / across, 0};
    run_block();
  }
}

struct Four { const void* row; unsigned* parts; };
struct Product { float* sums; const unsigned *rows, *columns; };
struct Shuffle { int lane; unsigned value; };

inline float from_bits(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline unsigned to_bits(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// Element k of 16-bit numbers in registers.
inline float bfloat16_of(const unsigned* parts, int k) {
  return from_bits(k % 2 ? parts[k / 2] & 0xffff0000u : parts[k / 2] << 16);
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
      rows[lane / 4 + k % 2 * 8][lane % 4 + k / 2 * 4] = from_bits(its->rows[k] & TF32);
    for (int k = 0; k < 2; k++) columns[lane / 4][lane % 4 + k * 4] = from_bits(its->columns[k] & TF32);
  }
  add_products<8>(arguments, rows, columns);
}

inline void exchange(void** arguments) {
  unsigned given[32];
  for (int lane = 0; lane < 32; lane++) given[lane] = ((Shuffle*)arguments[lane])->value;
  for (int lane = 0; lane < 32; lane++) {
    Shuffle* its = (Shuffle*)arguments[lane];
    its->value = given[its->lane < 0 || its->lane > 31 ? lane : its->lane];
  }
}

template <typename Number>
Number shuffled(Number value, int lane) {
  static_assert(sizeof(Number) <= 4 || sizeof(Number) == 8);
  unsigned words[2] = {0, 0};
  memcpy(words, &value, sizeof(Number));
  for (unsigned k = 0; k < (sizeof(Number) + 3) / 4; k++) {
    Shuffle given = {lane, words[k]};
    with_warp(exchange, &given);
    words[k] = given.value;
  }
  memcpy(&value, words, sizeof(Number));
  return value;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::WAITS_FOR_BLOCK); }
inline void __threadfence() {}
inline int __syncthreads_count(bool) { emulator::fail("is not emulated"); return 0; }
inline unsigned atomicInc(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
template <typename Number>
Number __ldg(const Number* from) { return *from; }
template <typename Number>
Number __ldcg(const Number* from) { return *from; }
inline float __uint_as_float(unsigned bits) { return emulator::from_bits(bits); }
inline unsigned __float_as_uint(float value) { return emulator::to_bits(value); }
inline double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
inline long long __double_as_longlong(double value) { long long bits; memcpy(&bits, &value, 8); return bits; }
template <typename Number>
Number __shfl_xor_sync(unsigned, Number value, int mask) { return emulator::shuffled(value, threadIdx.x % 32 ^ mask); }
template <typename Number>
Number __shfl_down_sync(unsigned, Number value, int by) { return emulator::shuffled(value, threadIdx.x % 32 + by); }
template <typename Number>
Number __shfl_sync(unsigned, Number value, int lane) { return emulator::shuffled(value, lane); }

// The instructions of `gpu_tensor_cores.cu`.
inline unsigned to_bfloat16(float value) {
  const unsigned bits = emulator::to_bits(value);
  if (value != value) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned bfloat16_pair(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
inline unsigned to_tf32(float value) {
  const unsigned bits = emulator::to_bits(value);
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
