# Bring back what searches and sweeps left.
cd /tmp/work
find . -path ./data -prune -o \( -name result.json -o -name experiment.toml -o -name provenance.json -o -name search.json -o -name trials.json -o -name worst.toml -o -name redteam.json \) -print0 | tar --null -T - -cJf $OUT/work.tar.xz
cp *.log $OUT/ 2>/dev/null; find . -name redteam.json | wc -l; find . -name result.json | wc -l; ls -la $OUT
