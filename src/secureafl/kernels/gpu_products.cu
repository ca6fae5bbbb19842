// Inner products of histories on a GPU: a kernel behind `kernels.gpu_peers`, compiled after `gpu_sums.cu`, and apart from
// what is made of them, which takes seconds to compile.

// Inner products of the histories of all members; the matrix is symmetric, a block makes a row up to the diagonal.
extern "C" __global__ void peer_products(const float* history, const index* members, const flag* due,
                                         double* gram, int size) {
  if (!*due) return;
  const int i = blockIdx.x, lane = threadIdx.x % 32;
  const float* mine = history + members[i] * size;
  for (int j = threadIdx.x / 32; j <= i; j += ONE_CLIENT / 32) {
    const float* other = history + members[j] * size;
    double sum = 0;
#pragma unroll 8
    for (int k = lane; k < size; k += 32) sum += (double)mine[k] * other[k];
    sum = warp_sum(sum);
    if (lane == 0) gram[i * CLIENTS + j] = gram[j * CLIENTS + i] = sum;
  }
}
