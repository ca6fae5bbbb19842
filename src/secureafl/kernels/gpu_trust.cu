// How far clients are trusted, on a GPU: the kernels behind `kernels.gpu_trust`, compiled after
// `gpu_sums.cu`. One block each where only numbers of clients are at hand; `core.trust` says what and why.
// TURNS, TINY, SILENT, SAYS, DOUBT, LEAST, ENOUGH, SEEN, FEW: `core.trust`.

// An upload beside its client's last: see `reference.secant_products`.
extern "C" __global__ void secant_products(const float* gradients, const float* bases, const flag* known,
                                   const index* client, const float* upload, const float* base, double* sums,
                                   flag* found_known, double* found, unsigned* counter, int d) {
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

// Of the values marked, the middle one, the smaller of two; infinite if there are none. A warp finds a value's rank.
template <typename Marked>
__device__ double lower_median(const double* values, Marked marked, int n) {
  __shared__ double middle;
  const int lane = threadIdx.x % 32;
  __syncthreads();
  if (threadIdx.x == 0) middle = INFINITE;
  int total = 0;
  for (int k = lane; k - lane < n; k += 32) total += __popc(__ballot_sync(FULL, k < n && marked(k)));
  __syncthreads();
  for (int i = threadIdx.x / 32; i < n; i += blockDim.x / 32) {
    if (!marked(i)) continue;
    int rank = 0;
    for (int k = lane; k - lane < n; k += 32) {
      const bool there = k < n && marked(k);
      const bool below = there && (values[k] < values[i] || (values[k] == values[i] && k < i));
      rank += __popc(__ballot_sync(FULL, below));
    }
    if (lane == 0 && rank == (total - 1) / 2) middle = values[i];
  }
  __syncthreads();
  return middle;
}

// Note an upload's length, consistency and bend: see `reference.update_stats`. One block.
extern "C" __global__ void update_stats(double* lengths, double* mean_square_norm, double* noise, double* mean, double* variance,
                                     index* count, flag* known, const index* client, const flag* heard,
                                     const double* ss, const double* sy,
                                     const double* yy, const double* squared, double* scale,
                                     double clip_norm, int clip_to_median_norm, double memory, int n) {
  const double length = sqrt(*squared);
  double most = *heard || length <= clip_norm ? length : clip_norm;
  const index c = *client;
  if (threadIdx.x == 0) {
    const double product = sqrt(*ss * *yy);
    if (*heard && product > 0 && product < INFINITE) {
      const double rate = fmax(1.0 / (count[c] + 1), 1 - memory), away = *sy / product - mean[c];
      mean[c] += rate * away;
      variance[c] = (1 - rate) * (variance[c] + rate * away * away);
      count[c]++;
    }
    lengths[c] = most, known[c] = 1;
  }
  if (clip_to_median_norm) most = fmin(most, lower_median(lengths, [&](int i) { return known[i]; }, n));
  if (threadIdx.x > 0) return;
  const double factor = length > most ? most / length : 1, kept = *heard ? memory : 0;
  mean_square_norm[c] = kept * mean_square_norm[c] + (1 - kept) * (*squared * factor * factor);
  noise[c] = kept * kept * noise[c] + (1 - kept) * (1 - kept);
  *scale = factor;
}

// Put an upload into its client's rows: see `reference.update_momentum`.
extern "C" __global__ void update_momentum(float* gradients, float* bases, float* recent_updates, float* update_histories,
                                    const index* client, const float* upload, const float* base, const flag* heard,
                                    const double* scale, float* mine, double short_momentum, double long_momentum,
                                    int d) {
  const size_t start = *client * d;
  const float short_kept = *heard ? short_momentum : 0, long_kept = *heard ? long_momentum : 0;
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    const size_t at = start + j;
    const float counted = upload[j] * *scale;
    gradients[at] = upload[j], bases[at] = base[j];
    recent_updates[at] = short_kept * recent_updates[at] + (1 - short_kept) * counted;
    update_histories[at] = mine[j] = long_kept * update_histories[at] + (1 - long_kept) * counted;
  }
}

// Sum of what is asked for over all clients, by one warp; every thread gets it.
template <typename Number>
__device__ double sum_over(int n, Number number) {
  double total = 0;
  for (int k = threadIdx.x % 32; k < n; k += 32) total += number(k);
  total = warp_sum(total);
  return __shfl_sync(FULL, total, 0);
}

// Each client's weight: see `core.trust.similarity_weights`. One block; a warp works on a client at a time.
// Weights of `weight` are written over; there is `room` for five numbers of every client.
__device__ void stand(const double* gram, const flag* known, double* weight, double* room, double similarity_penalty,
                      double disagreement_penalty, int n) {
  double *scale = room, *centre = scale + n, *along = centre + n, *seen = along + n, *number = seen + n;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, warps = blockDim.x / 32;
  const auto is_known = [&](int i) { return known[i]; };
  for (int i = thread; i < n; i += blockDim.x) {
    scale[i] = known[i] ? rsqrt(fmax(gram[(size_t)i * n + i], TINY)) : 0;
    weight[i] = known[i];
  }
  __syncthreads();
  for (int turn = 0; turn < TURNS; turn++) {
    const double all = fmax(sum_over(n, [&](int k) { return weight[k]; }), TINY);
    for (int i = thread; i < n; i += blockDim.x) centre[i] = weight[i] / all;
    __syncthreads();
    const auto alike = [&](int i, int k) { return gram[(size_t)i * n + k] * scale[i] * scale[k]; };
    for (int i = warp; i < n; i += warps) {
      const double sum = sum_over(n, [&](int k) { return alike(i, k) * centre[k]; });
      if (lane == 0) along[i] = sum;
    }
    __syncthreads();
    const double middle = sum_over(n, [&](int k) { return centre[k] * along[k]; });
    const auto apart = [&](int i, int k) { return alike(i, k) - along[i] - along[k] + middle; };
    for (int i = thread; i < n; i += blockDim.x) seen[i] = known[i] ? rsqrt(fmax(apart(i, i), CENTRAL)) : 0;
    __syncthreads();
    const auto angle = [&](int i, int k) { return apart(i, k) * seen[i] * seen[k]; };
    for (int i = warp; i < n; i += warps) {
      const double crowd = sum_over(n, [&](int k) {
        const double cosine = fmax(angle(i, k), 0.0);
        return cosine * cosine;
      });
      if (lane == 0) number[i] = fmax(crowd, 1.0);
    }
    const double usual_crowd = lower_median(number, is_known, n);
    for (int i = thread; i < n; i += blockDim.x)
      weight[i] = known[i] ? pow(fmin(usual_crowd / number[i], 1.0), similarity_penalty) : 0;
    __syncthreads();
    for (int i = warp; i < n; i += warps) {
      double backing = 0, blame = 0;
      for (int k = lane; k < n; k += 32) {
        const double cosine = angle(i, k);
        (cosine > 0 ? backing : blame) += cosine * cosine * weight[k];
      }
      backing = fmax(warp_sum(backing), weight[i]), blame = warp_sum(blame);
      if (lane == 0) number[i] = backing / fmax(backing + blame, TINY);
    }
    const double usual_share = fmax(lower_median(number, is_known, n), TINY);
    for (int i = thread; i < n; i += blockDim.x)
      weight[i] = known[i] ? weight[i] * pow(fmin(number[i] / usual_share, 1.0), disagreement_penalty) : 0;
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(1024) similarity_weights(
    const double* gram, const flag* known, double* weights, double similarity_penalty, double disagreement_penalty, int n) {
  extern __shared__ double room[];
  stand(gram, known, room, room + n, similarity_penalty, disagreement_penalty, n);
  for (int i = threadIdx.x; i < n; i += blockDim.x) weights[i] = room[i];
}

// From 0, at `least` of what is usual, to 1, at `enough` of it: see `core.trust._next_to_usual`.
__device__ double ramp(double value, double usual, double least, double enough) {
  if (!(usual > 0 && usual < INFINITE)) return 1;
  return fmin(fmax((value / fmax(usual, TINY) - least) / (enough - least), 0.0), 1.0);
}

// What every client's update counts for: see `core.trust.weigh_clients`. One block.
extern "C" __global__ void __launch_bounds__(1024) weigh_clients(
    double* gram, double* fresh, const double* mean_square_norm, const double* noise, const double* mean, const double* variance,
    const index* count, const flag* known, const index* client, const float* products, double* found, float* shares,
    double arrival_decay, double similarity_penalty, double disagreement_penalty, int consistency, int curvature, int remembered, int n) {
  extern __shared__ double room[];
  double *weight = room, *said = weight + n, *work = said + n;
  flag* heard = (flag*)(work + 5 * n);
  const int thread = threadIdx.x, threads = blockDim.x;
  const index c = *client;
  for (int i = thread; i < n; i += threads) gram[(size_t)c * n + i] = gram[(size_t)i * n + c] = products[i];
  __syncthreads();
  for (int i = thread; i < n; i += threads) {
    const double left = gram[(size_t)i * n + i] / fmax(mean_square_norm[i], TINY);
    work[i] = (left - noise[i]) / fmax(1 - noise[i], 0.5);
  }
  const auto told = [&](int i) { return known[i] && noise[i] < 0.5; };
  const double usual_history = consistency ? lower_median(work, told, n) : INFINITE;
  for (int i = thread; i < n; i += threads) {
    said[i] = !known[i] ? 0 : told(i) ? ramp(work[i] + DOUBT, usual_history, SILENT, SAYS) : 1;
    heard[i] = said[i] > 0;
  }
  __syncthreads();
  stand(gram, heard, weight, work, similarity_penalty, disagreement_penalty, n);
  const auto judged = [&](int i) { return heard[i] && count[i] >= SEEN; };
  const double usual_curvature = curvature ? lower_median(mean, judged, n) : INFINITE;
  for (int i = thread; i < n; i += threads) {
    const double error = sqrt(variance[i] / fmin(fmax((double)count[i], 1.0), (double)remembered));
    const double trust = said[i] * weight[i] * (judged(i) ? ramp(mean[i] + error, usual_curvature, LEAST, ENOUGH) : 1);
    fresh[i] = i == c ? 1 : fresh[i] * arrival_decay;
    if (i == c) found[0] = trust;
    work[i] = trust * fresh[i];
  }
  __syncthreads();
  const double total = sum_over(n, [&](int k) { return work[k]; });
  const double present = sum_over(n, [&](int k) { return (double)known[k]; });
  const double enough = fmin(present / min(FEW, n), 1.0);
  for (int i = thread; i < n; i += threads) shares[i] = work[i] / fmax(total, TINY) * enough;
  if (thread == 0) found[1] = total;
}
