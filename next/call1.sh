# Puts everything into /tmp/s, and starts the first queue.
. carry/env.sh; mkdir -p /tmp/images/data/tasks /tmp/images/figures; ln -sf /tmp/data/* /tmp/images/data/; cd /tmp/images
R=/tmp/s/docs/results/raw
for n in stated malicious-fraction delay non-iid clients; do [ -e $R/$n.tar.gz ] && tar -C figures -xzf $R/$n.tar.gz; done
touch /tmp/stamp
[ -n "$1" ] && setsid -f python /tmp/s/carry/queue_all.py "$@" > /tmp/images/queue1.log 2>&1 < /dev/null
sleep 8; date; cat /tmp/images/queue1.log; nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
