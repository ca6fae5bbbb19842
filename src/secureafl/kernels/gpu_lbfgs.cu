// The shares of `reference.lbfgs_shares`, compiled for CLIENTS, SLOTS and PAIRS when first used, after
// `gpu_sums.cu`. GRADIENT, BASE, OWN: `kernels.tiles`.

#define AT(row, column) mine[(row) * SLOTS + (column)]

// One thread computes one client.
extern "C" __global__ void lbfgs_shares(const double* gram, const double* along, const double* squared,
                                        const index* appended, double* shares, double max_correction) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= CLIENTS) return;
  const double* mine = gram + (size_t)c * SLOTS * SLOTS;
  const double* with_model = along + c * SLOTS;
  const index count = appended[c];
  int s[PAIRS], y[PAIRS];
  bool full[PAIRS];
  double s_v[PAIRS], y_v[PAIRS], over[PAIRS], right[PAIRS], q[PAIRS], diagonal[PAIRS];
  double lower[PAIRS][PAIRS], factor[PAIRS][PAIRS], of_s[PAIRS], of_y[PAIRS];
#pragma unroll
  for (int k = 0; k < PAIRS; k++) {
    s[k] = OWN + (count + k) % PAIRS, y[k] = s[k] + PAIRS;
    full[k] = count >= PAIRS - k;
    s_v[k] = with_model[s[k]] - AT(BASE, s[k]), y_v[k] = with_model[y[k]] - AT(BASE, y[k]);
    over[k] = full[k] ? 1 / AT(s[k], y[k]) : 0;
    right[k] = over[k] * y_v[k];
  }
  const double mu = AT(s[PAIRS - 1], y[PAIRS - 1]) / AT(s[PAIRS - 1], s[PAIRS - 1]);
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {  // Cholesky without roots, and forward substitution
    double goal = mu * s_v[i];
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
      lower[i][k] = k < i && full[k] ? AT(s[i], y[k]) : 0;
      goal += lower[i][k] * right[k];
    }
    goal = full[i] ? goal : 0;
#pragma unroll
    for (int k = 0; k <= i; k++) {
      double entry = mu * AT(s[i], s[k]);
#pragma unroll
      for (int m = 0; m < k; m++) entry += lower[i][m] * lower[k][m] * over[m];
      entry = full[k] ? entry : i == k;
#pragma unroll
      for (int m = 0; m < k; m++) entry -= factor[i][m] * factor[k][m] * diagonal[m];
      if (k < i) factor[i][k] = entry / diagonal[k];
      else diagonal[i] = entry;
    }
#pragma unroll
    for (int k = 0; k < i; k++) goal -= factor[i][k] * q[k];
    q[i] = goal;
  }
#pragma unroll
  for (int i = PAIRS - 1; i >= 0; i--) {
    q[i] /= diagonal[i];
#pragma unroll
    for (int k = i + 1; k < PAIRS; k++) q[i] -= factor[k][i] * q[k];
  }
  bool sound = count > 0 && fabs(mu) <= 1e10;  // false for NaN too
#pragma unroll
  for (int k = 0; k < PAIRS; k++) {
    double below = 0;
#pragma unroll
    for (int i = k + 1; i < PAIRS; i++) below += lower[i][k] * q[i];
    of_y[k] = right[k] - over[k] * below, of_s[k] = -mu * q[k];
    sound = sound && fabs(of_y[k]) <= 1e10 && fabs(of_s[k]) <= 1e10;
  }
  const double drift = *squared - 2 * with_model[BASE] + AT(BASE, BASE);
  double length = mu * mu * (drift > 0 ? drift : 0);
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    length += 2 * mu * (of_s[i] * s_v[i] + of_y[i] * y_v[i]);
#pragma unroll
    for (int k = 0; k < PAIRS; k++)
      length += of_s[i] * (AT(s[i], s[k]) * of_s[k] + 2 * AT(s[i], y[k]) * of_y[k])
              + of_y[i] * AT(y[i], y[k]) * of_y[k];
  }
  length = sqrt(length > 0 ? length : 0);
  const double longest = max_correction * sqrt(AT(GRADIENT, GRADIENT));
  const double scale = !sound ? 0 : length > longest ? longest / length : 1;
  double* out = shares + c * SLOTS;
  out[GRADIENT] = 1;
  out[BASE] = sound ? scale * mu : 0;
#pragma unroll
  for (int k = 0; k < PAIRS; k++) out[s[k]] = sound ? scale * of_s[k] : 0, out[y[k]] = sound ? scale * of_y[k] : 0;
}
