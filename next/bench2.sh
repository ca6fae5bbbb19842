# The checkout is `ahead`; carry/base has src of main (git archive main src).
. carry/env.sh
set -x
(timeout 240 python -m pytest -n 0 -q -p no:cacheprovider tests/kernels/test_fused.py tests/kernels/test_gpu_rows.py tests/kernels/test_gpu_cnn.py tests/simulation/test_replayed.py -m "slow or not slow" > $OUT/tests.log 2>&1; date +%s >> $OUT/tests.log)
tail -15 $OUT/tests.log
for p in $PWD/src $PWD/carry/base/src; do PYTHONPATH=$p:/tmp/c/py python carry/evaluation.py fashion_mnist /tmp/data; done
for p in $PWD/src $PWD/carry/base/src; do for d in "async_sgd min_max" "kardam sign_flip" "sageflow sign_flip" "secure_afl sign_flip"; do set -- $d
 echo $p $d; PYTHONPATH=$p:/tmp/c/py timeout 60 python scripts/time_rounds.py --device cuda --data-dir /tmp/data --processes 16 --together 2 --rounds 2000 --defenses $1 --attack $2; done; done 2>&1 | grep "ms a round\|/src"
