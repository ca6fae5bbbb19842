// Trust weights on a GPU: the kernels behind `kernels.gpu_trust`, compiled after `gpu_sums.cu`. Kernels that
// only work on statistics per client run as one block. `core.trust` explains the formulas and defines the
// constants (CENTRE_ITERATIONS, MIN_CONSISTENCY, ...).

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

// Update a client's norm, consistency and curvature: see `reference.update_stats`. One block.
extern "C" __global__ void update_stats(double* norms, double* mean_square_norm, double* noise, double* mean,
                                        double* variance, index* count, flag* known, const index* client,
                                        const flag* known_before, const double* ss, const double* sy,
                                        const double* yy, const double* squared, double* scale,
                                        double clip_norm, int clip_to_median_norm, double memory, int n) {
  const double norm = sqrt(*squared);
  double clipped = *known_before || norm <= clip_norm ? norm : clip_norm;
  const index c = *client;
  if (threadIdx.x == 0) {
    const double product = sqrt(*ss * *yy);
    if (*known_before && product > 0 && product < INFINITE) {
      const double rate = fmax(1.0 / (count[c] + 1), 1 - memory), deviation = *sy / product - mean[c];
      mean[c] += rate * deviation;
      variance[c] = (1 - rate) * (variance[c] + rate * deviation * deviation);
      count[c]++;
    }
    norms[c] = clipped, known[c] = 1;
  }
  if (clip_to_median_norm) clipped = fmin(clipped, lower_median(norms, [&](int i) { return known[i]; }, n));
  if (threadIdx.x > 0) return;
  const double factor = norm > clipped ? clipped / norm : 1, kept = *known_before ? memory : 0;
  mean_square_norm[c] = kept * mean_square_norm[c] + (1 - kept) * (*squared * factor * factor);
  noise[c] = kept * kept * noise[c] + (1 - kept) * (1 - kept);
  *scale = factor;
}

// Put an upload into its client's moving averages: see `reference.update_momentum`.
extern "C" __global__ void update_momentum(float* gradients, float* bases, float* recent_updates,
                                           float* update_histories, const index* client, const float* upload,
                                           const float* base, const flag* known_before, const double* scale,
                                           float* mine, double short_momentum, double long_momentum, int d) {
  const size_t start = *client * d;
  const float short_kept = *known_before ? short_momentum : 0, long_kept = *known_before ? long_momentum : 0;
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    const size_t at = start + j;
    const float counted = upload[j] * *scale;
    gradients[at] = upload[j], bases[at] = base[j];
    recent_updates[at] = short_kept * recent_updates[at] + (1 - short_kept) * counted;
    update_histories[at] = mine[j] = long_kept * update_histories[at] + (1 - long_kept) * counted;
  }
}

// Weights by similarity: see `core.trust.similarity_weights`. One block; a warp works on a client at a time.
// The weights go to `weight`; `room` is scratch memory for five numbers per client.
__device__ void weigh_by_similarity(const double* gram, const flag* known, double* weight, double* room,
                                    double similarity_penalty, double disagreement_penalty, int n) {
  double *scale = room, *centre = scale + n, *along = centre + n, *unit = along + n, *number = unit + n;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, warps = blockDim.x / 32;
  const auto is_known = [&](int i) { return known[i]; };
  for (int i = thread; i < n; i += blockDim.x) {
    scale[i] = known[i] ? rsqrt(fmax(gram[(size_t)i * n + i], TINY)) : 0;
    weight[i] = known[i];
  }
  __syncthreads();
  for (int iteration = 0; iteration < CENTRE_ITERATIONS; iteration++) {
    const double all = fmax(sum_over(n, [&](int k) { return weight[k]; }), TINY);
    for (int i = thread; i < n; i += blockDim.x) centre[i] = weight[i] / all;
    __syncthreads();
    const auto cosine = [&](int i, int k) { return gram[(size_t)i * n + k] * scale[i] * scale[k]; };
    for (int i = warp; i < n; i += warps) {
      const double sum = sum_over(n, [&](int k) { return cosine(i, k) * centre[k]; });
      if (lane == 0) along[i] = sum;
    }
    __syncthreads();
    const double middle = sum_over(n, [&](int k) { return centre[k] * along[k]; });
    const auto product = [&](int i, int k) { return cosine(i, k) - along[i] - along[k] + middle; };
    for (int i = thread; i < n; i += blockDim.x)
      unit[i] = known[i] ? rsqrt(fmax(product(i, i), MIN_SQUARED_DISTANCE)) : 0;
    __syncthreads();
    const auto centred_cosine = [&](int i, int k) { return product(i, k) * unit[i] * unit[k]; };
    for (int i = warp; i < n; i += warps) {
      const double group = sum_over(n, [&](int k) {
        const double positive = fmax(centred_cosine(i, k), 0.0);
        return positive * positive;
      });
      if (lane == 0) number[i] = fmax(group, 1.0);
    }
    const double median_group = lower_median(number, is_known, n);
    for (int i = thread; i < n; i += blockDim.x)
      weight[i] = known[i] ? pow(fmin(median_group / number[i], 1.0), similarity_penalty) : 0;
    __syncthreads();
    for (int i = warp; i < n; i += warps) {
      double support = 0, opposition = 0;
      for (int k = lane; k < n; k += 32) {
        const double value = centred_cosine(i, k);
        (value > 0 ? support : opposition) += value * value * weight[k];
      }
      support = fmax(warp_sum(support), weight[i]), opposition = warp_sum(opposition);
      if (lane == 0) number[i] = support / fmax(support + opposition, TINY);
    }
    const double median_share = fmax(lower_median(number, is_known, n), TINY);
    for (int i = thread; i < n; i += blockDim.x)
      weight[i] = known[i] ? weight[i] * pow(fmin(number[i] / median_share, 1.0), disagreement_penalty) : 0;
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(1024) similarity_weights(
    const double* gram, const flag* known, double* weights, double similarity_penalty,
    double disagreement_penalty, int n) {
  extern __shared__ double room[];
  weigh_by_similarity(gram, known, room, room + n, similarity_penalty, disagreement_penalty, n);
  for (int i = threadIdx.x; i < n; i += blockDim.x) weights[i] = room[i];
}

// Rises from 0, at `lowest` times the median, to 1, at `full` times: see `core.trust._relative_weights`.
__device__ double ramp(double value, double median, double lowest, double full) {
  if (!(median > 0 && median < INFINITE)) return 1;
  return fmin(fmax((value / fmax(median, TINY) - lowest) / (full - lowest), 0.0), 1.0);
}

// Shares of the clients' recent updates in the step: see `core.trust.weigh_clients`. One block.
extern "C" __global__ void __launch_bounds__(1024) weigh_clients(
    double* gram, double* freshness, const double* mean_square_norm, const double* noise, const double* mean,
    const double* variance, const index* count, const flag* known, const index* client, const float* products,
    double* found, float* shares, double arrival_decay, double similarity_penalty, double disagreement_penalty,
    int consistency, int curvature, int effective_samples, int n) {
  extern __shared__ double room[];
  double *weight = room, *by_consistency = weight + n, *work = by_consistency + n;
  flag* consistent = (flag*)(work + 5 * n);
  const int thread = threadIdx.x, threads = blockDim.x;
  const index c = *client;
  for (int i = thread; i < n; i += threads) gram[(size_t)c * n + i] = gram[(size_t)i * n + c] = products[i];
  __syncthreads();
  for (int i = thread; i < n; i += threads) {
    const double left = gram[(size_t)i * n + i] / fmax(mean_square_norm[i], TINY);
    work[i] = (left - noise[i]) / fmax(1 - noise[i], 0.5);
  }
  const auto rated = [&](int i) { return known[i] && noise[i] < 0.5; };
  const double median_consistency = consistency ? lower_median(work, rated, n) : INFINITE;
  for (int i = thread; i < n; i += threads) {
    by_consistency[i] = !known[i]  ? 0
                        : rated(i) ? ramp(work[i] + NOISE_ALLOWANCE, median_consistency, MIN_CONSISTENCY,
                                          FULL_CONSISTENCY)
                                   : 1;
    consistent[i] = by_consistency[i] > 0;
  }
  __syncthreads();
  weigh_by_similarity(gram, consistent, weight, work, similarity_penalty, disagreement_penalty, n);
  const auto has_curvature = [&](int i) { return consistent[i] && count[i] >= MIN_OBSERVATIONS; };
  const double median_curvature = curvature ? lower_median(mean, has_curvature, n) : INFINITE;
  for (int i = thread; i < n; i += threads) {
    const double error = sqrt(variance[i] / fmin(fmax((double)count[i], 1.0), (double)effective_samples));
    const double trust =
        by_consistency[i] * weight[i] *
        (has_curvature(i) ? ramp(mean[i] + error, median_curvature, MIN_CURVATURE, FULL_CURVATURE) : 1);
    freshness[i] = i == c ? 1 : freshness[i] * arrival_decay;
    if (i == c) found[0] = trust;
    work[i] = trust * freshness[i];
  }
  __syncthreads();
  const double total = sum_over(n, [&](int k) { return work[k]; });
  const double present = sum_over(n, [&](int k) { return (double)known[k]; });
  const double length = fmin(present / min(FULL_STEP_CLIENTS, n), 1.0);
  for (int i = thread; i < n; i += threads) shares[i] = work[i] / fmax(total, TINY) * length;
  if (thread == 0) found[1] = total;
}
