// Trust from neighbours on a GPU: a part of `gpu_peers.cu`, compiled between `gpu_matrix.cu` and that. `core.neighbours`
// explains the formulas and defines the constants. CLIENTS are judged at a time, by one block.
// Matrices lie in registers while they are made and otherwise in global memory, where the caches hold them; what is of one
// number a client lies in shared memory.
// Functions that are needed twice are compiled once: the compiler would take half as long again.

typedef const double* Products;

// Calls `use(i, j)` for each entry of a matrix, by all threads of the block.
template <typename Use>
__device__ void for_entries(Use use) {
  for (int k = threadIdx.x; k < CLIENTS * CLIENTS; k += blockDim.x) use(k / CLIENTS, k % CLIENTS);
  __syncthreads();
}

// Calls `use(i)` for each client.
template <typename Use>
__device__ void for_clients(Use use) {
  for (int i = threadIdx.x; i < CLIENTS; i += blockDim.x) use(i);
  __syncthreads();
}

// Marks the smaller one of the best two camps. The share of the variance between them.
__device__ __noinline__ double split(const double* values, const flag* known, flag* smaller) {
  __shared__ double sorted[CLIENTS], between[CLIENTS];
  __shared__ int rank[CLIENTS];
  for_clients([&](int i) {
    int before = 0;
    for (int k = 0; k < CLIENTS; k++)
      before += known[k] && (values[k] < values[i] || (values[k] == values[i] && k < i));
    rank[i] = before;
    if (known[i]) sorted[before] = values[i];
  });
  const int count = (int)sum_over(CLIENTS, [&](int k) { return (double)known[k]; });
  const double mean = sum_over(count, [&](int k) { return sorted[k]; }) / fmax((double)count, 1.0);
  const double total = sum_over(count, [&](int k) { return (sorted[k] - mean) * (sorted[k] - mean); });
  for_clients([&](int i) {
    double below = 0;
    for (int k = 0; k <= i && k < count; k++) below += sorted[k] - mean;
    between[i] = i + 1 < count ? below * below * count / ((i + 1.0) * (count - i - 1)) : 0;
  });
  int best = 0;
  for (int k = 1; k < CLIENTS; k++)
    if (between[k] > between[best]) best = k;
  const int size = count ? best + 1 : 0;  // of the lower camp
  for_clients([&](int i) {
    const bool lower = rank[i] < size;
    smaller[i] = known[i] && 2 * size != count && lower == (2 * size < count);
  });
  return between[best] / fmax(total, TINY);
}

struct Difference {
  double common, size, noise;
};

// Leaves the positions of what neighbours leave of clients in `differences`, and those of the clients in `hidden`,
// whose old ones say what is not seen. `work` holds two matrices: what each client (row) is in the difference of others
// from their neighbours, and its products with those differences.
__device__ __noinline__ Difference common_difference(Products products, const flag* known, const double* voice,
                                                     double* hidden, double* work, double* differences) {
  __shared__ double scale[CLIENTS], total[CLIENTS], share[CLIENTS], along[CLIENTS], left[CLIENTS];
  double *contrast = work, *half = contrast + CLIENTS * CLIENTS;
  for_clients([&](int i) {
    const double seen = products[i * CLIENTS + i] - hidden[i] * hidden[i];
    scale[i] = known[i] ? rsqrt(fmax(seen, NOTHING)) : 0;
  });
  const auto nearness = [&](int i, int j) {
    const double cosine = (products[i * CLIENTS + j] - hidden[i] * hidden[j]) * scale[i] * scale[j];
    return i == j ? 0 : fmax(cosine - NEAR, 0.0);
  };
  row_sums(CLIENTS, total, [&](int i, int j) { return nearness(i, j) * voice[j]; });
  for_clients([&](int i) {
    share[i] = total[i] / (total[i] + FEW_NEIGHBOURS);
    total[i] = share[i] / fmax(total[i], TINY);
  });
  for_entries([&](int j, int i) {
    contrast[j * CLIENTS + i] = i == j ? share[i] : -nearness(j, i) * voice[j] * total[i];
  });
  Matrix matrix;
  multiply(products, contrast, matrix);
  entries(matrix, [&](double& entry, int i, int j) {
    if (inside(i, j)) half[i * CLIENTS + j] = entry;
  });
  __syncthreads();
  multiply(half, contrast, matrix);
  entries(matrix, [&](double& entry, int i, int j) {
    if (i == j && inside(i, j)) left[i] = entry;
  });
  const double strength = principal_axis(matrix, differences);
  row_sums(CLIENTS, along, [&](int i, int j) { return half[i * CLIENTS + j] * differences[j]; });
  row_sums(CLIENTS, total, [&](int i, int j) { return contrast[i * CLIENTS + j] * differences[j]; });
  const double squared = sum_over(CLIENTS, [&](int k) { return along[k] * total[k]; });
  const double judged = sum_over(CLIENTS, [&](int k) { return pow(contrast[k * CLIENTS + k], 2); });
  const double all_left = sum_over(CLIENTS, [&](int k) { return left[k]; });
  const double sent = sum_over(CLIENTS, [&](int k) { return products[k * CLIENTS + k]; });
  for_clients([&](int i) {
    hidden[i] = along[i] / sqrt(fmax(squared, NOTHING));
    differences[i] *= sqrt(strength);
  });
  return {strength / fmax(all_left, NOTHING), strength / fmax(sent, NOTHING),
          (all_left - strength) / fmax(judged, NOTHING)};
}

// How far each client is a member of the camp.
__device__ __noinline__ void find_members(const double* differences, const double* clients, const flag* camp,
                                          const flag* known, const double* voice, double* members) {
  __shared__ double away[CLIENTS];
  const auto trusted = [&](int i) { return known[i] && voice[i] >= TRUSTED; };
  const auto usual = [&](int i) { return trusted(i) && !camp[i] && differences[i] != 0; };
  const double middle = lower_median(differences, usual, CLIENTS), place = lower_median(clients, trusted, CLIENTS);
  for_clients([&](int i) { away[i] = fabs(differences[i] - middle); });
  const double deviation = fmax(DEVIATION * lower_median(away, usual, CLIENTS), TINY);
  const double size = sum_over(CLIENTS, [&](int k) { return (double)camp[k]; });
  const double mean =
      sum_over(CLIENTS, [&](int k) { return camp[k] ? differences[k] - middle : 0; }) / fmax(size, 1.0);
  const int side = mean > 0 ? 1 : mean < 0 ? -1 : 0;
  for_clients([&](int i) {
    const double far = side * (differences[i] - middle), out = fmin(far, side * (clients[i] - place));
    const double member = rise(far / deviation, USUAL, UNUSUAL) * rise(out / fmax(fabs(mean), TINY), NEARER, HALFWAY);
    members[i] = differences[i] != 0 && middle < INFINITE ? member : 0;
  });
}

// Of what is seen of vectors with these inner products, as an estimate from clients with these weights.
template <typename Weight>
__device__ double variance(Products products, const double* hidden, Weight weight) {
  __shared__ double along[CLIENTS];
  const auto seen = [&](int i, int j) { return products[i * CLIENTS + j] - hidden[i] * hidden[j]; };
  const double unit = 1 / fmax(sum_over(CLIENTS, [&](int k) { return weight(k); }), TINY);
  row_sums(CLIENTS, along, [&](int i, int j) { return seen(i, j) * weight(j) * unit; });
  const double spread = sum_over(CLIENTS, [&](int k) { return weight(k) * unit * (seen(k, k) - along[k]); });
  const double squares = sum_over(CLIENTS, [&](int k) { return weight(k) * unit * weight(k) * unit; });
  __syncthreads();
  return spread / fmax(1 - squares, NOTHING);
}

// Inner products as seen from the mean of those who are trusted, in units of the median client's squared length.
__device__ void centred_products(Products gram, const flag* known, const double* voice, double* products) {
  __shared__ double scale[CLIENTS], along[CLIENTS];
  unit_scales(CLIENTS, gram, known, LONGEST, TINY, scale);
  const double unit = 1 / fmax(sum_over(CLIENTS, [&](int k) { return voice[k]; }), TINY);
  const auto scaled = [&](int i, int j) { return gram[i * CLIENTS + j] * scale[i] * scale[j]; };
  row_sums(CLIENTS, along, [&](int i, int j) { return scaled(i, j) * voice[j] * unit; });
  const double middle = sum_over(CLIENTS, [&](int k) { return voice[k] * unit * along[k]; });
  for_entries([&](int i, int j) {
    products[i * CLIENTS + j] = known[i] && known[j] ? scaled(i, j) - along[i] - along[j] + middle : 0;
  });
}

// Multiplies the weights of members of a camp among clients that are near each other but for `hidden` positions.
__device__ void weigh_camp(Products products, const flag* known, const double* voice, double* hidden, double* work,
                           double* weights) {
  __shared__ flag camp[CLIENTS];
  __shared__ double heard[CLIENTS], differences[CLIENTS], unseen[CLIENTS], members[CLIENTS];
  for (int turn = 0; turn < 2; turn++) common_difference(products, known, voice, hidden, work, differences);
  split(differences, known, camp);
  for_clients([&](int i) { heard[i] = camp[i] ? 0 : voice[i], unseen[i] = hidden[i]; });
  const Difference found = common_difference(products, known, heard, hidden, work, differences);
  const double apart = split(differences, known, camp);
  find_members(differences, hidden, camp, known, voice, members);
  const double size = sum_over(CLIENTS, [&](int k) { return members[k]; });
  const double count = sum_over(CLIENTS, [&](int k) { return (double)known[k]; });
  const double usual = fmax(variance(products, unseen, [&](int k) { return (double)known[k]; }), NOTHING);
  const double noise = fmin(found.noise / usual, NOISIEST);
  const double own = variance(products, unseen, [&](int k) { return members[k]; });
  const double diversity = (own / usual - noise) / (1 - noise);
  const auto seen = [&](int i, int j) { return products[i * CLIENTS + j] - unseen[i] * unseen[j]; };
  row_sums(CLIENTS, heard, [&](int i, int j) { return seen(i, j) * seen(i, j); });
  const double squares = sum_over(CLIENTS, [&](int k) { return heard[k]; });
  const double left = sum_over(CLIENTS, [&](int k) { return seen(k, k); });
  const double sent = sum_over(CLIENTS, [&](int k) { return products[k * CLIENTS + k]; });
  const double certainty = rise(left * left / fmax(squares, NOTHING), FEW_KINDS, MANY_KINDS) *
                           rise(left / fmax(sent, NOTHING), HIDDEN, VISIBLE) * rise(found.common, COMMON, MOST) *
                           rise(found.size, SMALL, LARGE) * rise(apart, APART, QUITE_APART) *
                           rise(diversity, ALIKE, DIVERSE) * (count >= FEWEST && size >= SMALLEST_CAMP);
  __syncthreads();
  for_clients([&](int i) { weights[i] *= 1 - certainty * members[i]; });
}

// Two looks: at all that is sent, and without the direction in which clients differ most. `work` holds three matrices.
__device__ void neighbour_weights(Products gram, const flag* known, const double* trust, const index* members,
                                  double* work, double* weights) {
  __shared__ double voice[CLIENTS], hidden[CLIENTS], longest[CLIENTS], found[CLIENTS];
  double *products = work, *scratch = products + CLIENTS * CLIENTS;
  for_clients([&](int i) { voice[i] = known[i] ? trust[members[i]] : 0, found[i] = 1; });
  centred_products(gram, known, voice, products);
  Matrix matrix;
  entries(matrix, [&](double& entry, int i, int j) { entry = inside(i, j) ? products[i * CLIENTS + j] : 0; });
  const double strength = principal_axis(matrix, longest);
  for (int look = 0; look < 2; look++) {
    for_clients([&](int i) { hidden[i] = look ? longest[i] * sqrt(strength) : 0; });
    weigh_camp(products, known, voice, hidden, scratch, found);
  }
  const double lost = sum_over(CLIENTS, [&](int k) { return 1 - found[k]; });
  const double count = sum_over(CLIENTS, [&](int k) { return (double)known[k]; });
  for_clients([&](int i) { weights[i] = known[i] ? (2 * lost < count ? found[i] : 1) : 0; });
}
