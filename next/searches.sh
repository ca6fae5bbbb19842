# Searches that the leaderboard wants again (findings F2 and F3 of the note of stop 49); outcomes come back in $OUT.
. carry/env.sh 2>/dev/null; cd /tmp/work; for f in /tmp/data/*; do ln -sf $f data/ 2>/dev/null; done
S="python -m secureafl redteam"
O="--malicious 0.2 --seeds 101-103 --device cuda --data-dir /tmp/data --quiet"
timeout 170 $S secure_afl,zeno_pp,sageflow $O --against asr --budget 48 --start-from '{ kind = "pgd" }' --start-from '{ kind = "pgd", factor = 5.0 }' --out asr > asr.log 2>&1 &
timeout 170 $S async_sgd $O --against error --budget 24 --start-from '{ kind = "alie", z = 1.5 }' --out sgd > sgd.log 2>&1 &
wait
tail -n 2 asr.log sgd.log
for f in asr/*/redteam.json sgd/redteam.json; do [ -e $f ] && cp $f $OUT/$(echo $f | tr / -); done
tar -cJf $OUT/searches.tar.xz --exclude=events.jsonl --exclude='*.safetensors' asr sgd
