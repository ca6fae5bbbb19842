#!/usr/bin/env bash
# The runs behind docs/results/first-run.md. Killed or cut off, start it again: it goes on.
#   scripts/first_run.sh OUT [secureafl options, such as --device cuda]
set -euo pipefail
out=$1
shift
file=experiments/paper/fashion_mnist.toml
secureafl=${SECUREAFL:-secureafl}
attacks=none,label_flip,sign_flip,gaussian,scaling
$secureafl compare $file --defenses async_sgd,secure_afl --attacks $attacks \
    --out "$out/table" "$@" &
$secureafl compare $file --defenses async_sgd,secure_afl --attacks sign_flip \
    --set placement=grouped --out "$out/grouped" "$@" &
for estimator in last_update history_mean; do
    $secureafl compare $file --defenses secure_afl --attacks none \
        --set defense.estimator=$estimator --out "$out/$estimator" "$@" &
done
wait
