// Runs the blocks of a CUDA kernel one after another on a CPU, each thread on a stack of its own.
//
// A warp runs until all its threads wait for the block or have ended, so a missing barrier shows: other warps are far
// behind or ahead, in an order drawn anew each time. Before each block shared memory is filled with what is not a
// number. Instructions of a whole warp are carried out when the last of its threads has come to them. Accesses of 8 and
// 16 bytes are checked for alignment by the compiler's sanitizer.

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

extern "C" {  // not by <cmath>, which takes longer to compile than a kernel
float sqrtf(float), fmaf(float, float, float), fabsf(float), fmaxf(float, float), fminf(float, float), expf(float);
double sqrt(double), fma(double, double, double), fmin(double, double), fmax(double, double), fabs(double), pow(double, double), nan(const char*);
}

#define __device__
#define __global__
#define __restrict__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("of_block")))

extern "C" char __start_of_block[], __stop_of_block[];
__attribute__((section("of_block"), used)) static char nothing;  // so that there is such a section

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

const int MOST = 1024;  // threads of a block
const size_t STACK = 1 << 16, GUARD = 64;
enum State { RUNS, WAITS_FOR_WARP, WAITS_FOR_BLOCK, ENDED };
typedef void (*Together)(void** arguments);  // what a warp does together, with what each of its threads gave

struct Thread {
  ucontext_t start;
  jmp_buf at;
  bool started;
  State state;
  Together together;
  void* argument;
  bool voted;
};

static Thread threads[MOST];
static char* stacks = (char*)malloc(MOST * STACK);
static jmp_buf scheduler;
static int current, votes;  // which thread runs; how many voted yes at the last barrier
static void (*body)();
static unsigned long long random_state;
static char* dynamic;  // shared memory whose size the launch says, with a guard behind it
static size_t dynamic_size;

inline unsigned drawn(unsigned below) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(random_state >> 33) % below;
}

// The numbers below `count` in an order that is drawn.
struct Shuffled {  // no std::vector: its header takes longer to compile than most kernels
  int count, *order;
  explicit Shuffled(int count) : count(count), order((int*)malloc(count * sizeof(int))) {
    for (int k = 0; k < count; k++) {
      const int other = drawn(k + 1);
      order[k] = order[other], order[other] = k;
    }
  }
  ~Shuffled() { free(order); }
  int* begin() const { return order; }
  int* end() const { return order + count; }
};

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

inline int count_votes(bool vote) {
  threads[current].voted = vote;
  wait(WAITS_FOR_BLOCK);
  return votes;
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

// Carries out the instruction that a warp's threads wait for; return whether they do.
inline bool act_together(int first, int lanes) {
  void* arguments[32] = {};
  int waiting = 0;
  Together together = nullptr;
  for (current = first; current < first + lanes; current++) {
    const Thread& thread = threads[current];
    if (thread.state != WAITS_FOR_WARP) continue;
    if (waiting++ && thread.together != together) fail("its warp carries out another instruction");
    together = thread.together;
    arguments[current - first] = thread.argument;
  }
  current = first;
  if (waiting == 0) return false;
  if (waiting < lanes) fail("not all of its warp come to an instruction of the whole warp");
  together(arguments);
  return true;
}

// Runs a warp until its threads wait for the block or have ended.
inline void run_warp(int first) {
  const int lanes = blockDim.x - first < 32 ? blockDim.x - first : 32;
  do {
    const int turn = drawn(lanes);
    for (int k = 0; k < lanes; k++) {
      const int number = first + (k + turn) % lanes;
      if (!threads[number].started || threads[number].state != ENDED) resume(number);
    }
  } while (act_together(first, lanes));
}

inline void run_block() {
  memset(__start_of_block, 0xff, __stop_of_block - __start_of_block);
  memset(dynamic, 0xff, dynamic_size + GUARD);
  for (int k = 0; k < blockDim.x; k++) threads[k].started = threads[k].voted = false;
  for (int waiting = 1; waiting > 0;) {
    for (int warp : Shuffled((blockDim.x + 31) / 32)) run_warp(32 * warp);
    waiting = votes = 0;
    for (int k = 0; k < blockDim.x; k++) {
      if (threads[k].state == ENDED) continue;
      waiting++;
      votes += threads[k].voted;
      threads[k].voted = false;
    }
  }
  for (size_t k = 0; k < GUARD; k++)
    if (dynamic[dynamic_size + k] != (char)0xff) fail("it wrote behind its shared memory");
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

inline void run(void (*of_thread)(), int across, int down, int size, int shared, unsigned seed) {
  body = of_thread, random_state = seed;
  blockDim = {size, 1, 1}, gridDim = {across, down, 1};
  if (size > MOST) fail("too many threads");
  dynamic_size = shared;
  dynamic = (char*)aligned_alloc(64, (dynamic_size + GUARD + 63) / 64 * 64);
  for (int number : Shuffled(across * down)) {
    blockIdx = {number % across, number / across, 0};
    run_block();
  }
  free(dynamic);
}

struct Shuffle { int lane; unsigned value; };

inline void exchange(void** arguments) {
  unsigned given[32];
  for (int lane = 0; lane < 32; lane++)
    if (arguments[lane]) given[lane] = ((Shuffle*)arguments[lane])->value;
  for (int lane = 0; lane < 32 && arguments[lane]; lane++) {
    Shuffle* its = (Shuffle*)arguments[lane];
    its->value = given[its->lane < 0 || its->lane > 31 || !arguments[its->lane] ? lane : its->lane];
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

template <typename Number>
using Join = Number (*)(Number, Number);

template <typename Number, Join<Number> join>
void reduce(void** arguments) {
  Number total = *(Number*)arguments[0];
  for (int lane = 1; lane < 32 && arguments[lane]; lane++) total = join(total, *(Number*)arguments[lane]);
  for (int lane = 0; lane < 32 && arguments[lane]; lane++) *(Number*)arguments[lane] = total;
}

// What all lanes make of their values, two at a time.
template <typename Number, Join<Number> join>
Number reduced(Number value) {
  with_warp(reduce<Number, join>, &value);
  return value;
}

template <typename Number>
Number sum(Number one, Number other) { return one + other; }

template <typename To, typename From>
To with_bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To found;
  memcpy(&found, &value, sizeof(To));
  return found;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::WAITS_FOR_BLOCK); }
inline int __syncthreads_count(int vote) { return emulator::count_votes(vote); }
inline int __syncthreads_and(int vote) { return emulator::count_votes(!vote) == 0; }
inline void __syncwarp(unsigned = 0xffffffffu) { emulator::with_warp([](void**) {}, nullptr); }
inline void __threadfence() {}
inline void __trap() { emulator::fail("trap"); }
inline unsigned atomicInc(unsigned* counter, unsigned last) {
  const unsigned before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}
template <typename Number>
Number __ldg(const Number* from) { return *from; }
template <typename Number>
Number __ldcg(const Number* from) { return *from; }
inline float __int_as_float(int bits) { return emulator::with_bits_of<float>(bits); }
inline int __float_as_int(float value) { return emulator::with_bits_of<int>(value); }
inline float __uint_as_float(unsigned bits) { return emulator::with_bits_of<float>(bits); }
inline unsigned __float_as_uint(float value) { return emulator::with_bits_of<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return emulator::with_bits_of<double>(bits); }
inline long long __double_as_longlong(double value) { return emulator::with_bits_of<long long>(value); }
inline float __fadd_rn(float one, float other) { return one + other; }
inline float __fsub_rn(float one, float other) { return one - other; }
inline float __fmul_rn(float one, float other) { return one * other; }
inline float __fdiv_rn(float one, float other) { return one / other; }
inline float __fsqrt_rn(float value) { return sqrtf(value); }
inline float __fmaf_rn(float one, float other, float added) { return fmaf(one, other, added); }
inline double __dadd_rn(double one, double other) { return one + other; }
inline double __dmul_rn(double one, double other) { return one * other; }
inline double __ddiv_rn(double one, double other) { return one / other; }
inline double __dsqrt_rn(double value) { return sqrt(value); }
inline double __fma_rn(double one, double other, double added) { return fma(one, other, added); }
inline double rsqrt(double value) { return 1 / sqrt(value); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
template <typename Number>
Number min(Number one, Number other) { return other < one ? other : one; }
template <typename Number>
Number max(Number one, Number other) { return one < other ? other : one; }
template <typename Number>
Number __shfl_xor_sync(unsigned, Number value, int mask) { return emulator::shuffled(value, threadIdx.x % 32 ^ mask); }
template <typename Number>
Number __shfl_down_sync(unsigned, Number value, int by) { return emulator::shuffled(value, threadIdx.x % 32 + by); }
template <typename Number>
Number __shfl_sync(unsigned, Number value, int lane) { return emulator::shuffled(value, lane); }
template <typename Number>
Number __reduce_add_sync(unsigned, Number value) { return emulator::reduced<Number, emulator::sum>(value); }
template <typename Number>
Number __reduce_min_sync(unsigned, Number value) { return emulator::reduced<Number, min>(value); }
template <typename Number>
Number __reduce_max_sync(unsigned, Number value) { return emulator::reduced<Number, max>(value); }
inline unsigned __ballot_sync(unsigned, int vote) {
  return __reduce_add_sync(0, vote ? 1u << threadIdx.x % 32 : 0u);
}

// What Python calls for each kernel.
#define KERNEL(name)                                                                                            \
  static void** given_to_##name;                                                                                \
  static void thread_of_##name() { emulator::call(of_device::name, given_to_##name); }                          \
  extern "C" int count_##name() { return emulator::count_parameters(of_device::name); }                         \
  extern "C" void run_##name(void** given, int across, int down, int size, int shared, unsigned seed) {         \
    given_to_##name = given;                                                                                    \
    emulator::run(thread_of_##name, across, down, size, shared, seed);                                          \
  }
