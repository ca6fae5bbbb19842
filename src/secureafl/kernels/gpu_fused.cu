// Pointwise operations as torch carries them out on a GPU, for the kernels that `kernels.fused` writes, which follow. Torch
// compiles each of them on its own, so nothing may be contracted here but what is there.

typedef long long index;

__device__ __forceinline__ float plus(float one, float other) { return __fadd_rn(one, other); }
__device__ __forceinline__ double plus(double one, double other) { return __dadd_rn(one, other); }
__device__ __forceinline__ index plus(index one, index other) { return one + other; }
__device__ __forceinline__ int plus(int one, int other) { return one + other; }
__device__ __forceinline__ bool plus(bool one, bool other) { return one || other; }

// one + factor * other
__device__ __forceinline__ float plus_scaled(float one, float other, float factor) { return __fmaf_rn(factor, other, one); }
__device__ __forceinline__ double plus_scaled(double one, double other, double factor) { return __fma_rn(factor, other, one); }
__device__ __forceinline__ index plus_scaled(index one, index other, index factor) { return one + factor * other; }
__device__ __forceinline__ int plus_scaled(int one, int other, int factor) { return one + factor * other; }

__device__ __forceinline__ float times(float one, float other) { return __fmul_rn(one, other); }
__device__ __forceinline__ double times(double one, double other) { return __dmul_rn(one, other); }
__device__ __forceinline__ index times(index one, index other) { return one * other; }
__device__ __forceinline__ int times(int one, int other) { return one * other; }
__device__ __forceinline__ bool times(bool one, bool other) { return one && other; }

__device__ __forceinline__ float over(float one, float other) { return __fdiv_rn(one, other); }
__device__ __forceinline__ double over(double one, double other) { return __ddiv_rn(one, other); }

__device__ __forceinline__ float root(float value) { return __fsqrt_rn(value); }
__device__ __forceinline__ double root(double value) { return __dsqrt_rn(value); }

__device__ __forceinline__ float size_of(float value) { return fabsf(value); }
__device__ __forceinline__ double size_of(double value) { return fabs(value); }
__device__ __forceinline__ index size_of(index value) { return value < 0 ? -value : value; }
__device__ __forceinline__ int size_of(int value) { return value < 0 ? -value : value; }

__device__ __forceinline__ float lower_of(float one, float other) { return fminf(one, other); }
__device__ __forceinline__ double lower_of(double one, double other) { return fmin(one, other); }
__device__ __forceinline__ index lower_of(index one, index other) { return one < other ? one : other; }
__device__ __forceinline__ int lower_of(int one, int other) { return one < other ? one : other; }
__device__ __forceinline__ float upper_of(float one, float other) { return fmaxf(one, other); }
__device__ __forceinline__ double upper_of(double one, double other) { return fmax(one, other); }
__device__ __forceinline__ index upper_of(index one, index other) { return one < other ? other : one; }
__device__ __forceinline__ int upper_of(int one, int other) { return one < other ? other : one; }

// What is not a number stays so.
template <typename Number>
__device__ __forceinline__ Number smaller(Number one, Number other) {
  return one != one ? one : other != other ? other : lower_of(one, other);
}

template <typename Number>
__device__ __forceinline__ Number larger(Number one, Number other) {
  return one != one ? one : other != other ? other : upper_of(one, other);
}

// Of whole numbers, rounded down.
template <typename Number>
__device__ __forceinline__ Number rest(Number one, Number other) {
  const Number found = one % other;
  return found != 0 && (found < 0) != (other < 0) ? found + other : found;
}

template <typename Number>
__device__ __forceinline__ Number whole_part(Number one, Number other) {
  return one / other - (one % other != 0 && (one < 0) != (other < 0));
}

// A row's number. As in torch, work with a wrong one ends.
__device__ __forceinline__ index inside(index row, int rows) {
  if (row < 0 || row >= rows) __trap();
  return row;
}
