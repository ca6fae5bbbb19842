// What the page knows: bounded, whatever the length of the run.

// Puts the columns of a message behind the `start` points that stay.
function extend(columns, message, names) {
  for (const name of names) {
    const old = columns[name] ?? [];
    old.length = Math.min(old.length, message.start);
    // A metric that turned up late has no values before.
    while (old.length < message.start) old.push(null);
    for (const value of message[name]) old.push(value);
    columns[name] = old;
  }
}

export class Run {
  constructor(name) {
    this.name = name;
    this.curves = { round: [], metrics: {} };
    this.scores = {};
    this.pace = {};
  }

  take(message) {
    this.head = message.head;
    const { start, round, metrics } = message.curves;
    extend(this.curves, { start, round }, ["round"]);
    const empty = round.map(() => null);
    for (const name of new Set([...Object.keys(this.curves.metrics), ...Object.keys(metrics)])) {
      extend(this.curves.metrics, { start, [name]: metrics[name] ?? empty }, [name]);
    }
    if (message.scores) {
      extend(this.scores, message.scores, ["round", "client", "value", "bound", "kind"]);
      extend(this.pace, message.pace, ["opened", "seconds", "rounds"]);
      const { scores, pace, curves, ...rest } = message;
      const { name, bound_name, malicious } = scores;
      Object.assign(this, rest, { deciding: { name, bound: bound_name, malicious } });
    }
  }
}

// Rounds per second between neighbours of one session.
export function rates(pace) {
  const [x, y] = [[], []];
  for (let i = 1; i < (pace.rounds?.length ?? 0); i++) {
    if (pace.rounds[i] <= (x.at(-1) ?? -1)) continue;
    const seconds = pace.seconds[i] - pace.seconds[i - 1];
    const same = pace.opened[i] === pace.opened[i - 1] && seconds > 0;
    x.push(pace.rounds[i]);
    y.push(same ? Math.max(0, pace.rounds[i] - pace.rounds[i - 1]) / seconds : null);
  }
  return [x, y];
}

// One connection that comes back by itself; the browser tells the server where it had got to.
export function listen(path, handlers, status) {
  const source = new EventSource(path);
  let retry = null;
  source.onopen = () => status(true);
  source.onerror = () => {
    status(false);
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(() => (again = listen(path, handlers, status)), 3000);
  };
  let again = null;
  for (const [kind, handle] of Object.entries(handlers)) source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
  return {
    close() {
      clearTimeout(retry);
      again?.close();
      source.close();
    },
  };
}
