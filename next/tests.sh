# Tests of what has not run on a GPU yet; then, in the background, searches that the leaderboard wants again.
. carry/env.sh; cd /tmp/s
python -m pytest -q -n 6 -p no:cacheprovider tests/kernels/test_gpu_resnet.py tests/tasks/test_faster.py tests/runtime/test_attackers.py -k "gpu or recorded or resnet or faster" > /tmp/work/tests.log 2>&1
tail -n 15 /tmp/work/tests.log; cp /tmp/work/tests.log $OUT
