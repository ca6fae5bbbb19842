. carry/env.sh
REPO=$PWD; R=/tmp/R; rm -rf $R; mkdir -p $R
cd /tmp/work
[ -d all ] || tar -xJf $REPO/carry/searches.tar.xz
for f in all/*/redteam.json; do d=$(basename $(dirname $f)); cp $f $R/$d.json; done
for d in norm_clipping aflguard basgd fed_async; do cp $REPO/docs/results/raw/redteam/$d-0.2-asr.json $R/redteam-fashion_mnist-$d-0.2-asr.json; done
timeout -s INT $1 python -m secureafl redteam async_sgd,fed_buff,fed_async,norm_clipping,sageflow,kardam,fl_detector,weighted_ctma,basgd,catalyst,aflguard,zeno_pp,async_defender,async_filter,secure_afl --malicious 0.1,0.3,0.4 --budget 24 --seeds 101-103 --start-from $R --against asr --device cuda --data-dir data --out rest > rest.log 2>&1
tail -n 5 rest.log
