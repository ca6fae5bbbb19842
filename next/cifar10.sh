# CIFAR-10's missing cells of seed 1, then the other seeds of three methods.
. carry/env.sh
REPO=$PWD; mkdir -p /tmp/images; cd /tmp/images
[ -d data/tasks/cifar-10-batches-py ] || (cd /tmp/parts && python unpack.py /tmp/images/data/tasks cifar10)
[ -d main-cifar10 ] || tar -xzf $REPO/docs/results/raw/main-cifar10.tar.gz
A="--task cifar10 --device cuda --data-dir data/tasks/cifar-10-batches-py --out main-cifar10"
(timeout -s INT $1 python -m secureafl reproduce main $A --seeds 1 && timeout -s INT $1 python -m secureafl reproduce main $A --seeds 1-3 --methods async_sgd,secure_afl,trust_clipping) > cifar10.log 2>&1
tail -n 5 cifar10.log
find main-cifar10 \( -name result.json -o -name experiment.toml -o -name provenance.json \) -print0 | tar --null -T - -cJf $OUT/main-cifar10.tar.xz; cp cifar10.log $OUT
