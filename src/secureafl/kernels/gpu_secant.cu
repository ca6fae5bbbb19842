// The last uploads, where they are stored outside of tiles: the kernel behind `kernels.gpu.secant_products`, compiled after
// `gpu_sums.cu`.

// Inner products of the changes since a client's last upload: see `reference.secant_products`.
extern "C" __global__ void secant_products(const float* gradients, const float* bases, const flag* known,
                                           const index* client, const float* upload, const float* base,
                                           double* sums, flag* found_known, double* found, unsigned* counter,
                                           int d) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *found_known = known[*client];
  const float *gradient = gradients + *client * d, *model = bases + *client * d;
  double values[4] = {0, 0, 0, 0};
#pragma unroll 4
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    const double g = upload[j], y = upload[j] - gradient[j], s = base[j] - model[j];
    values[0] += s * s;
    values[1] += s * y;
    values[2] += y * y;
    values[3] += g * g;
  }
  block_sums<4>(values, sums + blockIdx.x, gridDim.x);
  if (is_last_block(counter)) sums_over_blocks<4>(sums, [&](int k, double total) { found[k] = total; });
}
