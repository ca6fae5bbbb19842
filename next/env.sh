# Sourced by the others, here in the checkout's root or in the copy of it in /tmp/s.
export PYTHONUNBUFFERED=1
mkdir -p /tmp/c /tmp/data /tmp/parts /tmp/work /tmp/s
[ -d carry/data ] && cp -u carry/data/* /tmp/data/
[ -d /tmp/c/py ] || tar -C /tmp/c -xJf carry/py.tar.xz
[ -d /tmp/s/src ] || cp -r src tests docs experiments scripts carry /tmp/s/
export PYTHONPATH=/tmp/s/src:/tmp/s/tests:/tmp/c/py
ln -sfn /tmp/data /tmp/work/data
export SECUREAFL_COMMIT=$(cat /tmp/s/carry/commit 2>/dev/null || cat carry/commit)
