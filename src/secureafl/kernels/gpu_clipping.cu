// Trust clipping on a GPU: the kernels behind `kernels.gpu_clipping`, compiled after `gpu_sums.cu`. `core.clipping`
// explains the formulas and defines the constants. Two kernels pass over vectors, the others are one block each.

// Sketches of the upload, of the centre and of the model under the upload, SKETCHED numbers each, and block by block
// the sums |g|^2, |a|^2, a'c and |c|^2, where a = g - c. A block makes 32 columns; its warps share the rows.
extern "C" __global__ void sketch_upload(const float* upload, const float* centre, const float* base,
                                         const int* order, const signed char* signs, double* sketches,
                                         double* sums, int d) {
  __shared__ double partial[3][ONE_CLIENT / 32][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
  double values[4] = {0, 0, 0, 0}, mine[3] = {0, 0, 0};
  if (column < SKETCHED)
#pragma unroll 4
    for (size_t at = (size_t)warp * SKETCHED + column; at < d; at += (size_t)ONE_CLIENT / 32 * SKETCHED) {
      const int j = order[at];
      const double sign = signs[at], g = upload[j], c = centre[j], a = g - c;
      mine[0] += sign * g, mine[1] += sign * c, mine[2] += sign * base[j];
      values[0] += g * g, values[1] += a * a, values[2] += a * c, values[3] += c * c;
    }
#pragma unroll
  for (int k = 0; k < 3; k++) partial[k][warp][lane] = mine[k];
  block_sums<4>(values, sums + blockIdx.x, gridDim.x);
  __syncthreads();
  if (warp < 3 && column < SKETCHED) {
    double total = 0;
    for (int w = 0; w < ONE_CLIENT / 32; w++) total += partial[warp][w][lane];
    sketches[warp * SKETCHED + column] = total;
  }
}

// Adds up each of the four sums of `sketch_upload` over its blocks, to shared memory.
__device__ void add_up(const double* sums, int blocks, double* totals) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 4) {
    double total = 0;
    for (int b = lane; b < blocks; b += 32) total += sums[(size_t)warp * blocks + b];
    total = warp_sum(total);
    if (lane == 0) totals[warp] = total;
  }
  __syncthreads();
}

// Adds a cosine to a client's curvature: see `core.curvature.update_curvature`.
__device__ void update_curvature(double* mean, double* variance, index* count, double cosine, double momentum) {
  const double rate = fmax(1.0 / (*count + 1), 1 - momentum), deviation = cosine - *mean;
  *mean += rate * deviation;
  *variance = (1 - rate) * (*variance + rate * deviation * deviation);
  *count += 1;
}

// Put an upload, which is sketched, into its client's records: see `core.clipping.remember_upload`. One block.
extern "C" __global__ void remember_upload(const double* sketches, const double* sums, const index* client,
                                           flag* known, double* norms, double* distances, double* usual,
                                           double* recent, double* uploads, double* kept, double* mean,
                                           double* variance, index* count, double* whole_mean, double* whole_variance,
                                           index* whole_count, float* last, float* bases, float* history,
                                           double* position, double momentum, int blocks, int n) {
  __shared__ double totals[4], products[7];
  const index c = *client;
  const bool known_before = known[c];
  const double made = uploads[c], before = fmin(made / (made + 1), momentum);
  add_up(sums, blocks, totals);
  const double distance = sqrt(totals[1]);
  if (threadIdx.x == 0) {
    const double counted = made > 0 ? fmin(distance, GROWTH * usual[c]) : distance;
    known[c] = 1, norms[c] = sqrt(totals[0]), distances[c] = counted;
    usual[c] += (counted - usual[c]) / (made + 1);
    recent[c] = sqrt(counted) + before * (recent[c] - sqrt(counted));
  }
  const double median = lower_median(recent, [&](int i) { return known[i]; }, n);
  const double share = distance > 0 ? fmin(distance, median * median) / fmax(distance, TINY) : 1;
  double values[7] = {0, 0, 0, 0, 0, 0, 0};
  for (int k = threadIdx.x; k < SKETCHED; k += blockDim.x) {
    const size_t at = c * SKETCHED + k;
    const float upload = (1 - share) * sketches[SKETCHED + k] + share * sketches[k];
    const float base = sketches[2 * SKETCHED + k];
    const double moved = base - bases[at], own = last[at], changed = upload - own;
    values[0] += moved * moved, values[1] += changed * changed, values[2] += moved * changed;
    values[3] += (double)upload * upload;
    values[4] += own * own, values[5] += own * moved, values[6] += own * changed;
    last[at] = upload, bases[at] = base;
    history[at] = upload + (float)before * (history[at] - upload);
  }
  block_sums<7>(values, products, 1);
  __syncthreads();
  if (threadIdx.x > 0) return;
  const double along = products[5] / fmax(products[4], TINY);
  const double moved = sqrt(products[0]), by_others = sqrt(fmax(products[0] - along * products[5], 0.0));
  const double change = sqrt(products[1]);
  const bool told = known_before && change > ROUNDING * sqrt(products[3]);
  if (told && by_others > ALONE * moved && by_others * change > 0)
    update_curvature(mean + c, variance + c, count + c, (products[2] - along * products[6]) / (by_others * change),
                     momentum);
  if (told && moved * change > 0)
    update_curvature(whole_mean + c, whole_variance + c, whole_count + c, products[2] / (moved * change), momentum);
  kept[c] = share + before * (kept[c] - share);
  uploads[c] = made + 1;
  position[0] = distance, position[1] = totals[2], position[2] = sqrt(totals[3]);
}

// The panel whose turn it is, and whether it is judged now: see `core.panels.call_panel`. One block of 1,024 threads,
// for up to 2,048 clients.
extern "C" __global__ void call_panel(index* order, const index* deal, index* arrivals, index* members, flag* due,
                                      int every, int size, int panels, int n) {
  const index now = *arrivals, turn = now / every, place = turn % panels;
  for (int k = threadIdx.x; k < size; k += blockDim.x) members[k] = order[(place * size + k) % n];
  const bool judged = now % every == 0, last = panels > 1 && place == panels - 1;
  index dealt[2];
  for (int k = 0; k < 2; k++) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i < n) dealt[k] = order[deal[i]];
  }
  __syncthreads();
  for (int k = 0; k < 2; k++) {
    const int i = threadIdx.x + k * blockDim.x;
    if (judged && last && i < n) order[i] = dealt[k];
  }
  if (threadIdx.x == 0) *due = judged, *arrivals = now + 1;
}

// Weights from curvature: see `core.curvature.curvature_weights`. With `lower`, where they are lower than those there.
__device__ void curvature_weights(const flag* known, const double* mean, const double* variance, const index* count,
                                  int samples, int n, bool lower, double* weights) {
  const auto rated = [&](int i) { return known[i] && count[i] >= MIN_OBSERVATIONS; };
  const double median = lower_median(mean, rated, n);
  const bool tells = median > 0 && median < INFINITE;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const double error = CREDIT * sqrt(variance[i] / fmin(fmax((double)count[i], 1.0), (double)samples));
    const double found =
        tells && rated(i) ? rise((mean[i] + error) / fmax(median, TINY), MIN_CURVATURE, FULL_CURVATURE) : 1;
    weights[i] = lower ? fmin(weights[i], found) : found;
  }
}

// Weights from curvature and from what clipping leaves, and who has any: see `core.clipping.judge_clients`. One block.
extern "C" __global__ void weigh_records(const flag* known, const double* kept, const double* mean,
                                         const double* variance, const index* count, const double* whole_mean,
                                         const double* whole_variance, const index* whole_count, const flag* due,
                                         double* weights, flag* left, int samples, int n) {
  if (!*due) return;
  curvature_weights(known, mean, variance, count, samples, n, false, weights);
  curvature_weights(known, whole_mean, whole_variance, whole_count, samples, n, true, weights);
  const double left_of_median = fmax(lower_median(kept, [&](int i) { return known[i]; }, n), TINY);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    weights[i] *= rise(kept[i] / left_of_median, CUT, SPARED);
    left[i] = known[i] && weights[i] > 0;
  }
}

// Puts the judgement on the members into their trust. `by_peers` holds several weights of each. One block.
extern "C" __global__ void renew_trust(const flag* known, const double* weights, const double* by_peers,
                                       const index* members, const flag* due, double* trust,
                                       double forgiving, int kinds, int judged) {
  if (!*due) return;
  for (int k = threadIdx.x; k < judged; k += blockDim.x) {
    const index i = members[k];
    double found = weights[i];
    for (int kind = 0; kind < kinds; kind++) found *= by_peers[kind * judged + k];
    const double news = found > trust[i] && trust[i] < COUNTED ? forgiving : NEWS;
    if (known[i]) trust[i] += news * (found - trust[i]);
  }
}

// Lets all clients earn, but the one that spends: see `core.clipping`. What it spends.
__device__ double spend_pace(double* earned, index c, double others, int n) {
  const double saved = earned[c];
  __syncthreads();
  if (n == 1) return saved;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const double now = fmin(earned[i] + PACE / fmax(others, 1.0), SAVED);
    earned[i] = i == c ? saved - fmin(saved, 1.0) : now;
  }
  return fmin(saved, 1.0);
}

// What becomes of an upload: see `core.clipping.weigh_step`. `found` are trust, pace, and the shares of the centre and
// of the upload in the step and in the next centre; `flags` whether it counts, and whether the model may move. One block.
extern "C" __global__ void weigh_step(const flag* known, const double* norms, const double* distances,
                                      const double* recent, const double* uploads, const double* trust, double* earned,
                                      double* mean_trust, const index* client, const double* distance_of, const double* along,
                                      const double* centre, double* found, flag* flags, int n) {
  const index c = *client;
  const auto all = [](int) { return true; };
  const double others = sum_over(n, [&](int i) { return (double)known[i]; }) - 1;
  const double pace = spend_pace(earned, c, others, n);
  const double norm = lower_median(norms, all, n);
  const double root = lower_median(recent, all, n), radius = fmin(root * root, norm);
  const double warm_up = fmin(lower_median(uploads, all, n) * fmax(1.0, n / (double)LARGEST_PANEL) / WARM_UP, 1.0);
  const double longer = sum_over(n, [&](int i) { return fmin(distances[i], 2 * radius); });
  const double shorter = sum_over(n, [&](int i) { return fmin(distances[i], radius); });
  if (threadIdx.x > 0) return;
  const double mine = trust[c], stretch = shorter > 0 ? longer / fmax(shorter, TINY) : 1;
  *mean_trust += RATE * pace * (mine - *mean_trust);
  const double distance = *distance_of, length = fmin(distance, radius) / fmax(distance, TINY);
  const double factor = warm_up * mine * pace / fmax(*mean_trust, SHORTEST);
  const auto norm_after = [&](double share) {
    const double way = share * distance;
    return sqrt(fmax(*centre * *centre + 2 * share * *along + way * way, 0.0));
  };
  const bool ready = factor > 0 && 2 * (others + 1) > n && stretch * factor * norm_after(length) <= LARGEST_NORM;
  flags[0] = mine * pace >= COUNTED, flags[1] = ready;
  const double towards = ready ? TOWARDS / n * mine * pace * length : 0, moved = norm_after(towards);
  const double shrink = towards > 0 && moved > 2 * norm ? 2 * norm / fmax(moved, TINY) : 1;
  found[0] = mine, found[1] = pace;
  found[2] = stretch * factor * (1 - length), found[3] = stretch * factor * length;
  found[4] = shrink * (1 - towards), found[5] = shrink * towards;
}

// The step's direction, and the next centre in place of this one.
extern "C" __global__ void take_step(float* centre, const float* upload, const double* in_step,
                                     const double* in_centre, float* direction, int d) {
  const double of_centre = in_step[0], of_upload = in_step[1], kept = in_centre[0], towards = in_centre[1];
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    const double c = centre[j], g = upload[j];
    direction[j] = of_centre * c + of_upload * g;
    centre[j] = kept * c + towards * g;
  }
}
