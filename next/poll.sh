# poll.sh SECONDS: wait, and bring back what has ended since the queue began; ready at any time from 45 s on, if it is cut off.
cp /tmp/o/* $OUT/ 2>/dev/null && rm -f /tmp/o/*
cd /tmp/images; END=$(($(date +%s) + $1))
while [ $(date +%s) -lt $END ]; do
  L=$((END - $(date +%s))); sleep $((L < 40 ? L : 40))
  find main-* figures readings baselines leaderboard -name result.json -newer /tmp/stamp -printf '%h\n' | while read d; do for f in result.json experiment.toml provenance.json; do echo $d/$f; done; done > list
  XZ_OPT=-2 tar -cJf /tmp/cells.tar.xz -T list && cp /tmp/cells.tar.xz $OUT/.c && mv $OUT/.c $OUT/cells.tar.xz; cp queue*.log $OUT
  echo $(date +%T) $(grep -c result.json list) $(nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader)
  pgrep -f queue_all.py > /dev/null || break
done
grep -v "cells done" queue.log | tail -n 4; grep "cells done" queue.log | tail -n 1
