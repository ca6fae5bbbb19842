# begin.sh DATASET WORDS...: unpacks a data set's pieces and what was run before; starts the queue of these words in the background.
D=$1; shift
cd /tmp/s; . carry/env.sh; mkdir -p /tmp/images/data/tasks /tmp/images/figures; cd /tmp/images
[ -e /tmp/parts/piece0 ] && (cd /tmp/parts && cat piece* | tar -x && python unpack.py /tmp/images/data/tasks $D && rm -f piece*)
ln -sf /tmp/data/* data/
R=/tmp/s/docs/results/raw
for t in cifar10 cifar100 udacity tiny_imagenet; do [ -e $R/main-$t.tar.gz ] && tar -xzf $R/main-$t.tar.gz; done
for n in stated malicious-fraction delay non-iid clients; do [ -e $R/$n.tar.gz ] && tar -C figures -xzf $R/$n.tar.gz; done
touch /tmp/stamp
setsid -f python /tmp/s/carry/queue_all.py "$@" > /tmp/images/queue.log 2>&1 < /dev/null
date; ls data/tasks
