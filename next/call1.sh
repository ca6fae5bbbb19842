# Puts everything into /tmp/s. With the pieces of a data set (calls 2 to 4) begin.sh starts the queue.
. carry/env.sh; ls /tmp/s; date
