// Trust from peers on a GPU: a kernel behind `kernels.gpu_peers`, compiled after `gpu_sums.cu`, `gpu_matrix.cu` and
// `gpu_neighbours.cu`. `core.peers` explains the formulas and defines the constants. CLIENTS are judged at a time.

// (matrix + ridge I)^-1 of a matrix without negative eigenvalues, in place, by elimination without pivoting.
__device__ void invert(Matrix& matrix, double ridge) {
  __shared__ double rows[2][WIDTH], columns[2][WIDTH];  // by turns, so that one barrier a step is enough
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  entries(matrix, [&](double& entry, int i, int j) { entry += i == j ? ridge : 0; });
  __syncthreads();
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    for (int at = 0; at < 32 && 32 * tile + at < CLIENTS; at++) {
      const int k = 32 * tile + at;
      double *row = rows[k % 2], *column = columns[k % 2];
#pragma unroll
      for (int t = 0; t < TILES; t++) {
        if (warp == at) row[lane + 32 * t] = matrix[tile][t];
        if (lane == at) column[warp + 32 * t] = matrix[t][tile];
      }
      __syncthreads();
      const double pivot = 1 / row[k];
      entries(matrix, [&](double& entry, int i, int j) {
        const double left = column[i] * pivot;
        if (i == k)
          entry = j == k ? pivot : row[j] * pivot;
        else
          entry = j == k ? -left : entry - left * row[j];
      });
    }
  }
  __syncthreads();
}

__device__ void novelty_weights(const double* gram, const flag* known, double* weights) {
  __shared__ double length[CLIENTS], novelty[CLIENTS];
  const auto is_known = [&](int i) { return known[i]; };
  const int thread = threadIdx.x;
  unit_scales(CLIENTS, gram, known, LONGEST, TINY, length);
  Matrix matrix;
  entries(matrix, [&](double& entry, int i, int j) {
    entry = inside(i, j) ? gram[i * CLIENTS + j] * length[i] * length[j] : 0;
  });
  invert(matrix, NOVELTY_RIDGE);
  entries(matrix, [&](double& entry, int i, int j) {
    if (i == j && inside(i, j)) novelty[i] = 1 / entry - NOVELTY_RIDGE;
  });
  const double usual = fmax(USUAL_NOVELTY * lower_median(novelty, is_known, CLIENTS), NOVELTY_RIDGE);
  if (thread < CLIENTS) weights[thread] = known[thread] ? usual / fmax(novelty[thread], usual) : 0;
}

// Multiplies the weights of few clients by those from the lengths of their histories.
__device__ void weigh_lengths(const double* gram, const flag* known, double* weights) {
  __shared__ double length[CLIENTS];
  const int thread = threadIdx.x;
  if (thread < CLIENTS) length[thread] = sqrt(fmax(gram[thread * CLIENTS + thread], 0.0));
  const double usual = fmax(USUAL_LENGTH * lower_median(length, [&](int i) { return known[i]; }, CLIENTS), TINY);
  const double all = sum_over(CLIENTS, [&](int k) { return (double)known[k]; });
  if (thread >= CLIENTS || all <= 2) return;
  const double share = usual / fmax(length[thread], usual);
  weights[thread] *= share * share;
}

// Cosines of the best guesses of each client's direction from all others', to `guesses`. With M the inverse of
// A + ridge I and D its diagonal, the guesses are I - M / D of the directions, whose inner products are A.
__device__ void confirm(const double* gram, const flag* known, double* inverted, double* guesses) {
  __shared__ double scale[WIDTH];
  const int thread = threadIdx.x;
  if (thread < WIDTH)
    scale[thread] =
        thread < CLIENTS && known[thread] ? rsqrt(fmax(gram[thread * CLIENTS + thread], TINY)) : 0;
  __syncthreads();
  Matrix matrix;
  entries(matrix, [&](double& entry, int i, int j) {
    entry = inside(i, j) ? gram[i * CLIENTS + j] * scale[i] * scale[j] : 0;
  });
  invert(matrix, CONFIRMATION_RIDGE);
  entries(matrix, [&](double& entry, int i, int j) {
    if (inside(i, j)) inverted[i * CLIENTS + j] = entry;
  });
  __syncthreads();
  const auto diagonal = [&](int i) { return inverted[i * CLIENTS + i]; };
  entries(matrix, [&](double& entry, int i, int j) {
    if (!inside(i, j)) return;
    double square = 0;
    for (int k = 0; k < CLIENTS; k++) square += inverted[i * CLIENTS + k] * inverted[j * CLIENTS + k];
    const double mine = 1 / diagonal(i), other = 1 / diagonal(j);
    const double direction = gram[i * CLIENTS + j] * scale[i] * scale[j];
    guesses[i * CLIENTS + j] = direction + CONFIRMATION_RIDGE * entry * (mine + other) +
                               (entry - CONFIRMATION_RIDGE * square) * mine * other - (i == j ? 2 * mine : 0);
  });
  __syncthreads();
  if (thread < CLIENTS)
    scale[thread] = known[thread] ? rsqrt(fmax(guesses[thread * CLIENTS + thread], NOTHING)) : 0;
  __syncthreads();
  entries(matrix, [&](double& entry, int i, int j) {
    if (inside(i, j)) guesses[i * CLIENTS + j] *= scale[i] * scale[j];
  });
  __syncthreads();
}

// Makes cosines of inner products; 0 for clients that are not known.
__device__ void make_cosines(Matrix& products, const flag* known) {
  __shared__ double scale[WIDTH];
  if (threadIdx.x < WIDTH) scale[threadIdx.x] = 0;
  __syncthreads();
  entries(products, [&](double& entry, int i, int j) {
    if (i == j && inside(i, j) && known[i]) scale[i] = rsqrt(fmax(entry, NOTHING));
  });
  __syncthreads();
  entries(products, [&](double& entry, int i, int j) { entry *= scale[i] * scale[j]; });
  __syncthreads();
}

// Sizes of the clients' groups, in medians, raised to `sizes` where they are larger. `root` is scratch memory.
__device__ void raise_to_group_sizes(Matrix& agreement, const double* voice, const flag* known, double* root,
                                     double* sizes) {
  __shared__ double size[CLIENTS];
  const int lane = threadIdx.x % 32;
  entries(agreement, [&](double& entry, int i, int j) {
    if (inside(i, j)) root[i * CLIENTS + j] = sqrt(fmax(entry - AGREEMENT, 0.0));
  });
  __syncthreads();
  for (int i = threadIdx.x / 32; i < CLIENTS; i += 32) {
    const double* mine = root + i * CLIENTS;
    double pairs = 0;
    for (int j = lane; j < CLIENTS; j += 32) {
      if (mine[j] == 0) continue;
      double both = 0;
      for (int k = 0; k < CLIENTS; k++) both += mine[k] * voice[k] * root[k * CLIENTS + j];
      pairs += both * mine[j] * voice[j];
    }
    pairs = warp_sum(pairs);
    if (lane == 0) size[i] = voice[i] + sqrt(pairs);
  }
  __syncthreads();
  const double median = lower_median(size, [&](int i) { return known[i]; }, CLIENTS);
  if (threadIdx.x < CLIENTS) sizes[threadIdx.x] = fmax(sizes[threadIdx.x], size[threadIdx.x] / median);
  __syncthreads();
}

__device__ void group_weights(const double* gram, const flag* known, double* work, double* weights) {
  __shared__ double weight[CLIENTS], centre[CLIENTS], along[CLIENTS], voice[CLIENTS], alike[CLIENTS];
  __shared__ double block[CLIENTS], group[CLIENTS], of_one_mind[CLIENTS];
  double *inverted = work, *guesses = work + CLIENTS * CLIENTS;
  const int thread = threadIdx.x;
  if (thread < CLIENTS) {
    alike[thread] = 1, weight[thread] = known[thread];
    centre[thread] = sqrt(fmax(gram[thread * CLIENTS + thread], 0.0));
  }
  const double usual = lower_median(centre, [&](int i) { return known[i]; }, CLIENTS);
  if (thread < CLIENTS) voice[thread] = sqrt(fmin(fmax(centre[thread] / fmax(usual, TINY), 1 / LONGEST), LONGEST));
  confirm(gram, known, inverted, guesses);
  const double all = sum_over(CLIENTS, [&](int k) { return (double)known[k]; });
  for (int turn = 0; turn < CENTRINGS; turn++) {
    const double total = fmax(sum_over(CLIENTS, [&](int k) { return weight[k]; }), TINY);
    if (thread < CLIENTS) centre[thread] = weight[thread] / total, block[thread] = 0, group[thread] = 1;
    __syncthreads();
    row_sums(CLIENTS, along, [&](int i, int j) { return guesses[i * CLIENTS + j] * centre[j]; });
    const double middle = sum_over(CLIENTS, [&](int k) { return centre[k] * along[k]; });
    const auto seen = [&](double& entry, int i, int j) {
      const bool both = inside(i, j) && known[i] && known[j];
      entry = both ? guesses[i * CLIENTS + j] - along[i] - along[j] + middle : 0;
    };
    Matrix matrix;
    entries(matrix, seen);
    invert(matrix, WHITENING_RIDGE);
    entries(matrix, [&](double& entry, int i, int j) { entry = (i == j) - WHITENING_RIDGE * entry; });
    make_cosines(matrix, known);
    raise_to_group_sizes(matrix, alike, known, inverted, group);
    entries(matrix, seen);
    make_cosines(matrix, known);
    raise_to_group_sizes(matrix, alike, known, inverted, block);
    raise_to_group_sizes(matrix, voice, known, inverted, block);
    if (turn == 0) row_sums(CLIENTS, of_one_mind, [&](int i, int j) {
        const double root = inverted[i * CLIENTS + j];  // of what exceeds AGREEMENT
        return root * root + AGREEMENT > MAJORITY ? 1.0 : 0.0;
      });
    if (thread < CLIENTS) {
      const double by_block = 1 - (1 - LEAST_OF_BLOCK) * rise(block[thread], LARGE_BLOCK, LARGEST_BLOCK);
      const double by_group = 1 - rise(group[thread], LARGE_GROUP, LARGEST_GROUP);
      weight[thread] = !known[thread] ? 0 : 2 * of_one_mind[thread] >= all ? 1 : fmin(by_block, by_group);
    }
    __syncthreads();
  }
  if (thread < CLIENTS) weights[thread] = weight[thread];
}

// A block for each kind of weights: by novelty (and lengths), by groups and, if there is a third, by neighbours.
extern "C" __global__ void __launch_bounds__(1024)
    peer_weights(const double* gram, const index* members, const flag* known, const double* trust, const flag* due,
                 double* work, double* weights) {
  if (!*due) return;
  __shared__ flag judged[CLIENTS];
  if (threadIdx.x < CLIENTS) judged[threadIdx.x] = known[members[threadIdx.x]];
  __syncthreads();
  if (blockIdx.x == 0) {
    novelty_weights(gram, judged, weights);
    if (CLIENTS < FEWEST) weigh_lengths(gram, judged, weights);
  } else if (blockIdx.x == 1) group_weights(gram, judged, work, weights + CLIENTS);
  else neighbour_weights(gram, judged, trust, members, work + 2 * CLIENTS * CLIENTS, weights + 2 * CLIENTS);
}
