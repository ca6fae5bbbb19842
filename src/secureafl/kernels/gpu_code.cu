// The server step of SecureAFL on a GPU: the kernels behind `kernels.gpu`, compiled for CLIENTS and SLOTS when
// first used, after `gpu_sums.cu`. Nothing is read back by the host, so a whole step can be recorded and
// replayed.
// WIDTH, GRADIENT, BASE, OWN: `kernels.tiles`. NETWORK: comparisons that sort half of the clients.

#define ROWS (CLIENTS * SLOTS)
#define HIGHEST 3.402823466e38f

// Whether a client's last upload is known, and s's, s'y, y'y, g'g since then.
extern "C" __global__ void tiled_secant_products(const float* vectors, const flag* known, const index* client,
                                                 const float* upload, const float* base, double* sums,
                                                 flag* found_known, double* found, unsigned* counter, int d) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *found_known = known[*client];
  double values[4] = {0, 0, 0, 0};
#pragma unroll 4
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    const float* own = vectors + ((size_t)(j / WIDTH) * CLIENTS + *client) * SLOTS * WIDTH + j % WIDTH;
    const double g = upload[j], y = upload[j] - own[GRADIENT * WIDTH], s = base[j] - own[BASE * WIDTH];
    values[0] += s * s;
    values[1] += s * y;
    values[2] += y * y;
    values[3] += g * g;
  }
  block_sums<4>(values, sums + blockIdx.x, gridDim.x);
  if (is_last_block(counter)) sums_over_blocks<4>(sums, [&](int k, double total) { found[k] = total; });
}

#define HISTORY 1024  // threads of `filter_update`, which is one block
#define HELD (LONGEST / HISTORY + 1)

// The Lipschitz filter: see `reference.filter_update`. The history is changed in place.
extern "C" __global__ void __launch_bounds__(HISTORY) filter_update(
    double* ordered, double* recent, index* count_at, const flag* known_at, const double* ss,
    const double* yy, const double* squared, flag* accepted, double* found, double radius,
    double level, int window) {
  __shared__ int place, hole, partial[2][HISTORY / 32];
  const bool known = *known_at, comparable = known && *ss > 0;
  const double factor = comparable ? sqrt(*yy / *ss) : 0;
  const index count = *count_at;
  const int filled = count < window ? count : window, slot = count % window, thread = threadIdx.x;
  const double oldest = recent[slot];
  if (comparable) {  // shift what lies between the value that leaves and the one that comes
    double held[HELD];
    int smaller = 0, before = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const int i = k * HISTORY + thread;
      held[k] = i <= filled ? ordered[i] : 0;
      if (i < filled) smaller += held[k] < factor, before += held[k] < oldest;
    }
    smaller = __reduce_add_sync(FULL, smaller), before = __reduce_add_sync(FULL, before);
    if (thread % 32 == 0) partial[0][thread / 32] = smaller, partial[1][thread / 32] = before;
    __syncthreads();
    if (thread < 32) {
      const int all = __reduce_add_sync(FULL, partial[0][thread]);
      const int gone = __reduce_add_sync(FULL, partial[1][thread]);
      if (thread == 0) hole = gone, place = all > gone ? all - 1 : all;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const int i = k * HISTORY + thread;
      if (i > filled) break;
      if (i > hole && i <= place) ordered[i - 1] = held[k];
      if (i >= place && i < hole) ordered[i + 1] = held[k];
    }
    // Nobody else writes to this place.
    if (thread == 0) ordered[place] = recent[slot] = factor, *count_at = count + 1;
  }
  __syncthreads();
  if (thread != 0) return;
  const int size = comparable && filled < window ? filled + 1 : filled;
  const double position = level * (size > 0 ? size - 1 : 0);
  const int low = (int)position;
  const double one = ordered[low], other = ordered[low + 1 < size ? low + 1 : (size > 0 ? size - 1 : 0)];
  const double threshold = one == other ? one : one + (other - one) * (position - low);
  *accepted = factor <= threshold;
  found[0] = comparable ? factor : nan("");
  found[1] = threshold;
  const double length = sqrt(*squared);
  found[2] = !known && length > radius ? radius / length : 1;
}

// Places of a client's step and change, and whether s'y is large enough: see `reference.place_pair`.
extern "C" __global__ void place_pair(index* appended, const index* client, const flag* known,
                                      const double* ss, const double* sy, const flag* keep,
                                      index* places, flag* curved, double min_curvature, int pairs) {
  const index count = appended[*client];
  *curved = *known && *sy > min_curvature * *ss;
  places[0] = count % pairs, places[1] = places[0] + pairs;
  appended[*client] = count + (*curved && *keep);
}

// Clients whose vectors are aggregated: see `reference.select_participants`. One block.
extern "C" __global__ void select_participants(const flag* known, double* shares, const index* client,
                                               const flag* included, flag* present, index* count) {
  __shared__ int partial[ONE_CLIENT / 32];
  const index c = *client;
  int there = 0;
  for (int i = threadIdx.x; i < CLIENTS; i += ONE_CLIENT) {
    present[i] = i == c ? *included : known[i];
    there += present[i];
  }
  if (threadIdx.x < SLOTS) shares[c * SLOTS + threadIdx.x] = threadIdx.x == GRADIENT;
  there = __reduce_add_sync(FULL, there);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = there;
  __syncthreads();
  if (threadIdx.x != 0) return;
  index total = 0;
  for (int w = 0; w < ONE_CLIENT / 32; w++) total += partial[w];
  *count = total;
}

// Inner products after a step of the model, in place: see `reference.after_step`.
extern "C" __global__ void after_step(double* along, double* squared, const double* step_along,
                                      const double* with_model, const double* step_squared,
                                      const index* count, flag* stepped, double rate, double largest) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  const bool moves = *count > 0 && *step_squared <= largest;
  if (r == 0) *stepped = moves;
  if (!moves || r > ROWS) return;
  if (r < ROWS) along[r] -= rate * step_along[r];
  else *squared += rate * (rate * *step_squared - 2 * *with_model);
}

#define SUMS (ROWS + 3)  // of `order_pass`: products of the step with rows, model and itself; distance to the upload

// Adds up the sums of all blocks of `order_pass`: a lane for each sum, the warps share the blocks.
extern "C" __global__ void add_up(const double* sums, double* found, int blocks) {
  __shared__ double partial[ONE_CLIENT / 32][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x * 32 + lane;
  double total = 0;
  if (r < SUMS)
    for (int b = warp; b < blocks; b += ONE_CLIENT / 32) total += sums[(size_t)b * SUMS + r];
  partial[warp][lane] = total;
  __syncthreads();
  if (warp > 0 || r >= SUMS) return;
  for (int w = 1; w < ONE_CLIENT / 32; w++) total += partial[w][lane];
  found[r] = total;
}

// Inner products of a client's rows (the upload's only with itself) and, last, the model.
#define PAIRS_OF_ROWS (1 + SLOTS * (SLOTS + 1) / 2)

// Puts new rows into a client's places and computes its inner products anew.
// `parts`: for each of `places` 0 (upload), 1 (step) or 2 (change).
extern "C" __global__ void store_upload(float* vectors, const index* client, const float* upload,
                                        const float* base, const float* model, const index* places,
                                        const flag* keep_all, const flag* keep_entry, double* sums,
                                        double* gram, double* along, flag* known, double* squared,
                                        unsigned* counter, int count, int parts, int d) {
  double values[PAIRS_OF_ROWS];
#pragma unroll
  for (int k = 0; k < PAIRS_OF_ROWS; k++) values[k] = 0;
  const bool keep = *keep_all, entry = keep && *keep_entry;
  const index c = *client;
  for (int j = blockIdx.x * blockDim.x + threadIdx.x; j < d; j += gridDim.x * blockDim.x) {
    float* own = vectors + ((size_t)(j / WIDTH) * CLIENTS + c) * SLOTS * WIDTH + j % WIDTH;
    float rows[SLOTS + 1];
#pragma unroll
    for (int s = 0; s < SLOTS; s++) rows[s] = own[s * WIDTH];
    rows[SLOTS] = model[j];
    const float g = upload[j], b = base[j], y = g - rows[GRADIENT], step = b - rows[BASE];
    if (keep) {
      own[GRADIENT * WIDTH] = rows[GRADIENT] = g;
      own[BASE * WIDTH] = rows[BASE] = b;
    }
    if (entry) {
      for (int k = 0; k < count; k++) {
        const int place = OWN + places[k], part = (parts >> (2 * k)) & 3;
        const float value = part == 0 ? g : part == 1 ? step : y;
        own[place * WIDTH] = value;
#pragma unroll
        for (int s = OWN; s < SLOTS; s++) rows[s] = s == place ? value : rows[s];
      }
    }
    values[0] += (double)rows[GRADIENT] * rows[GRADIENT];
    int pair = 1;
#pragma unroll
    for (int i = 1; i <= SLOTS; i++)
#pragma unroll
      for (int k = i; k <= SLOTS; k++) values[pair++] += (double)rows[i] * rows[k];
  }
  block_sums<PAIRS_OF_ROWS>(values, sums + blockIdx.x, gridDim.x);
  if (!is_last_block(counter)) return;
  sums_over_blocks<PAIRS_OF_ROWS>(sums, [&](int pair, double total) {
    int i = 0, k = 0;
    if (pair > 0) {
      int rest = pair - 1;
      for (i = 1; rest > SLOTS - i; i++) rest -= SLOTS - i + 1;
      k = i + rest;
    }
    if (i == SLOTS) {
      *squared = total;
    } else if (keep) {
      if (k == SLOTS) along[c * SLOTS + i] = total;
      else gram[(c * SLOTS + i) * SLOTS + k] = gram[(c * SLOTS + k) * SLOTS + i] = total;
      if (pair == 0) known[c] = 1;
    }
  });
}

#define ROWS_PADDED ((CLIENTS + 1) / 2 * 2)
#define COLUMN (ROWS_PADDED | 1)  // odd: neighbouring columns start in different banks
#define KEYS ((CLIENTS + 31) / 32)

__device__ int sort_key(float value) {
  const int bits = __float_as_int(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

__device__ float key_value(int key) { return __int_as_float(key ^ ((key >> 31) & 0x7fffffff)); }

__device__ int keys_below(const int* keys, int trial) {
  int below = 0;
#pragma unroll
  for (int m = 0; m < KEYS; m++) below += keys[m] < trial;
  return __reduce_add_sync(FULL, below);
}

// The k-th smallest key of a column held by a warp, bit by bit from the highest.
__device__ int kth_key(const int* keys, int k) {
  unsigned found = 0x80000000u;
  for (int bit = 31; bit >= 0; bit--) {
    const int trial = found + (1u << bit);  // at first this wraps around, to 0
    const int below = keys_below(keys, trial);
    if (below == k + 1) {  // the wanted one is the largest of these
      int largest = 0x80000000;
#pragma unroll
      for (int m = 0; m < KEYS; m++)
        if (keys[m] < trial) largest = max(largest, keys[m]);
      return __reduce_max_sync(FULL, largest);
    }
    if (below == k) {  // it is the smallest of the others
      int smallest = 0x7fffffff;
#pragma unroll
      for (int m = 0; m < KEYS; m++)
        if (keys[m] >= trial) smallest = min(smallest, keys[m]);
      return __reduce_min_sync(FULL, smallest);
    }
    if (below > k) continue;
    if (trial == 0 && keys_below(keys, 1) > k) return 0;  // common: zeros of inactive units
    found = trial;
  }
  return found;
}

// Mean of the first-th to last-th smallest of a column, by a warp; rows of absent clients do not count.
__device__ float order_mean(const float* column, const flag* there, int first, int last) {
  const int lane = threadIdx.x % 32;
  int keys[KEYS];
#pragma unroll
  for (int m = 0; m < KEYS; m++) {
    const int i = m * 32 + lane;
    keys[m] = i < CLIENTS && there[i] ? sort_key(column[i]) : 0x7fffffff;
  }
  const int low = kth_key(keys, first);
  const float share = 1.0f / max(last - first + 1, 1);
  int upto = 0, below = 0, next = 0x7fffffff;
#pragma unroll
  for (int m = 0; m < KEYS; m++) {
    upto += keys[m] <= low;
    if (keys[m] > low) next = min(next, keys[m]);
  }
  upto = __reduce_add_sync(FULL, upto);
  int high = low;
  if (last <= first + 1) {  // a median: nothing lies between the two
    const int highs = max(last + 1 - upto, 0);
    if (highs) high = __reduce_min_sync(FULL, next);
    return share * (last + 1 - first - highs) * key_value(low) + share * highs * key_value(high);
  }
  if (upto <= last) high = kth_key(keys, last);
  float inner = 0;
#pragma unroll
  for (int m = 0; m < KEYS; m++) {
    below += keys[m] < high;
    if (keys[m] > low && keys[m] < high) inner += share * key_value(keys[m]);
  }
  below = __reduce_add_sync(FULL, below);
  for (int half = 16; half > 0; half /= 2) inner += __shfl_xor_sync(FULL, inner, half);
  const int lows = min(upto, last + 1) - first, highs = high > low ? last + 1 - below : 0;
  return inner + share * lows * key_value(low) + share * highs * key_value(high);
}

#ifdef NETWORK
#define HALF (ROWS_PADDED / 2)
#define EXCHANGE(i, j) \
  { const float a = fminf(v[i], v[j]); v[j] = fmaxf(v[i], v[j]); v[i] = a; }

__device__ void sort_half(float* v) { NETWORK }

// The two middle values of a column, each times its weight, by a thread. With one half reversed, the
// smaller of each couple are the lower half of all, the larger the upper half: the middle lies between.
__device__ float middle(const float* column, float below, float above) {
  float one[HALF], other[HALF];
#pragma unroll
  for (int i = 0; i < HALF; i++) one[i] = column[i];
  sort_half(one);
#pragma unroll
  for (int i = 0; i < HALF; i++) other[i] = column[HALF + i];
  sort_half(other);
  float low = -HIGHEST, high = HIGHEST;
#pragma unroll
  for (int i = 0; i < HALF; i++) {
    low = fmaxf(low, fminf(one[i], other[HALF - 1 - i]));
    high = fminf(high, fmaxf(one[i], other[HALF - 1 - i]));
  }
  return below * low + above * high;
}
#endif

// Combine, select and form inner products; block b takes tiles b, b + gridDim.x, ...
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) order_pass(
    const float* __restrict__ vectors, const double* __restrict__ shares, const float* __restrict__ model,
    const float* __restrict__ upload, const flag* __restrict__ present, const index* first_at,
    const index* last_at, float* direction, double* sums, int d, int tiles) {
  extern __shared__ double shared[];
  double* along = shared;                                  // [ROWS]
  float* share = (float*)(along + ROWS);                   // [ROWS]
  float* columns = share + ROWS;                           // [WIDTH][COLUMN]
  float* step = columns + WIDTH * COLUMN;                  // [WIDTH]
  float* fill = step + WIDTH;                              // [ROWS_PADDED]: values for rows without a client
  flag* there = (flag*)(fill + ROWS_PADDED);               // [CLIENTS]
  __shared__ int gone;
  const int thread = threadIdx.x;
  if (thread < 32) {  // as many lowest as highest values, so that the middle of the others stays there
    int away = 0, met = 0;
    for (int i = thread; i < CLIENTS; i += 32) away += !present[i];
    away = __reduce_add_sync(FULL, away);
    for (int start = 0; start < ROWS_PADDED; start += 32) {
      const int i = start + thread;
      const bool real = i < CLIENTS, absent = real && !present[i];
      const unsigned all = __ballot_sync(FULL, absent);
      const int before = met + __popc(all & ((1u << thread) - 1));
      if (i < ROWS_PADDED) fill[i] = real && !absent ? 0 : absent && before < away / 2 ? -HIGHEST : HIGHEST;
      if (real) there[i] = !absent;
      met += __popc(all);
    }
    if (thread == 0) gone = away;
  }
  for (int r = thread; r < ROWS; r += THREADS) along[r] = 0, share[r] = shares[r];
  __syncthreads();
  const int first = *first_at, last = *last_at;
#ifdef NETWORK
  const int low = first + gone / 2, high = last + gone / 2;
  const bool central = HALF - 1 <= low && high <= HALF;
  const float scale = 1.0f / max(last - first + 1, 1);
  const float below = low == HALF - 1 ? scale : 0, above = high == HALF ? scale : 0;
#endif
  double with_model = 0, itself = 0, apart = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const float* rows = vectors + (size_t)tile * ROWS * WIDTH;
    for (int item = thread; item < ROWS_PADDED * (WIDTH / 4); item += THREADS) {
      const int i = item / (WIDTH / 4), w = item % (WIDTH / 4) * 4;
      float4 total = make_float4(fill[i], fill[i], fill[i], fill[i]);
      if (fill[i] == 0) {
        float4 x[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) x[s] = *(const float4*)(rows + (i * SLOTS + s) * WIDTH + w);
        const int j = tile * WIDTH + w;
        const float4 now = j + 3 < d ? make_float4(model[j], model[j + 1], model[j + 2], model[j + 3])
                                     : make_float4(j < d ? model[j] : 0, j + 1 < d ? model[j + 1] : 0,
                                                   j + 2 < d ? model[j + 2] : 0, 0);
        x[BASE] = make_float4(now.x - x[BASE].x, now.y - x[BASE].y, now.z - x[BASE].z, now.w - x[BASE].w);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
          const float a = share[i * SLOTS + s];
          total.x += a * x[s].x, total.y += a * x[s].y, total.z += a * x[s].z, total.w += a * x[s].w;
        }
      }
      columns[w * COLUMN + i] = total.x;
      columns[(w + 1) * COLUMN + i] = total.y;
      columns[(w + 2) * COLUMN + i] = total.z;
      columns[(w + 3) * COLUMN + i] = total.w;
    }
    __syncthreads();
#ifdef NETWORK
    if (central) {
      if (thread < WIDTH) step[thread] = middle(columns + thread * COLUMN, below, above);
    } else
#endif
      for (int w = thread / 32; w < WIDTH; w += THREADS / 32) {
        const float mean = order_mean(columns + w * COLUMN, there, first, last);
        if (thread % 32 == 0) step[w] = mean;
      }
    __syncthreads();
    if (thread < WIDTH) {
      const int j = tile * WIDTH + thread;
      if (j < d) {
        direction[j] = step[thread];
        with_model += (double)step[thread] * model[j];
        itself += (double)step[thread] * step[thread];
        const double away = upload[j] - step[thread];
        apart += away * away;
      }
    }
    for (int r = thread; r < ROWS; r += THREADS) {
      if (r % SLOTS == GRADIENT) continue;
      float total = 0;
#pragma unroll
      for (int w = 0; w < WIDTH; w += 4) {
        const float4 x = *(const float4*)(rows + (size_t)r * WIDTH + w);
        total += x.x * step[w] + x.y * step[w + 1] + x.z * step[w + 2] + x.w * step[w + 3];
      }
      along[r] += total;
    }
  }
  double* out = sums + (size_t)blockIdx.x * SUMS;
  for (int r = thread; r < ROWS; r += THREADS) out[r] = along[r];
  const double others[3] = {warp_sum(with_model), warp_sum(itself), warp_sum(apart)};
  if (thread == 0)
    for (int k = 0; k < 3; k++) out[ROWS + k] = others[k];
}
