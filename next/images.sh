# images.sh SECONDS TASK FOLDER ARGUMENTS: cells of a task's main table; brings back all that ended. Waits for the searches first.
for i in $(seq 250); do [ -e /tmp/rest.done ] && break; sleep 1; done; cp /tmp/o/* $OUT/ 2>/dev/null; rm -f /tmp/o/*
cd /tmp/s; . carry/env.sh; mkdir -p /tmp/images; cd /tmp/images; date
S=$1; T=$2; F=$3; shift 3
[ -d data/tasks/$F ] || (cd /tmp/parts && cat piece* | tar -x && python unpack.py /tmp/images/data/tasks $T && rm -f piece*)
[ -d main-$T ] || tar -xzf /tmp/s/docs/results/raw/main-$T.tar.gz
timeout -s INT $S python -m secureafl reproduce main --task $T --device cuda --data-dir data/tasks/$F --out main-$T "$@" > $T.log 2>&1
grep -v "cells done" $T.log | tail -n 3; grep "cells done" $T.log | tail -n 1; date
find main-$T \( -name result.json -o -name experiment.toml -o -name provenance.json \) -print0 | tar --null -T - -cJf $OUT/main-$T.tar.xz; cp $T.log $OUT
