# begin.sh DATASET WORDS...: unpacks a data set's pieces and what was run before; starts the queue of these words in the background.
D=$1; shift
cd /tmp/s; . carry/env.sh; cd /tmp/images
[ -e /tmp/parts/piece0 ] && (cd /tmp/parts && cat piece* | tar -x && python unpack.py /tmp/images/data/tasks $D && rm -f piece*)
R=/tmp/s/docs/results/raw
for t in cifar10 cifar100 udacity tiny_imagenet; do [ -e $R/main-$t.tar.gz ] && tar -xzf $R/main-$t.tar.gz; done
[ $# -gt 0 ] || { ls data/tasks; exit 0; }
setsid -f python /tmp/s/carry/queue_all.py "$@" > /tmp/images/queue.log 2>&1 < /dev/null
sleep 5; date; ls data/tasks; cat queue.log; tail -c 300 queue1.log
