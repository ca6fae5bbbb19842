# figures.sh SECONDS SEEDS: cells of the figures and of the stated table on Fashion-MNIST.
cd /tmp/s; . carry/env.sh; cd /tmp/work; date
timeout -s INT $1 python -m secureafl reproduce stated,malicious-fraction,delay,non-iid,clients --seeds $2 --device cuda --data-dir data --out figures > figures.log 2>&1
grep -v "cells done" figures.log | tail -n 3; grep "cells done" figures.log | tail -n 1; date
find figures \( -name result.json -o -name experiment.toml -o -name provenance.json \) -print0 | tar --null -T - -cJf $OUT/figures.tar.xz; cp figures.log $OUT
