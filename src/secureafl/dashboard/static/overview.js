// The page of a run, with other runs laid over its curves.
import { address, byId, card, figure, make, say, table, whole } from "./dom.js";
import { BESIDE, BLUE, Chart, GREEN, HEIGHT, VERMILLION, bars, colour, joined, lineStyle, marks, tone } from "./charts.js";
import { MEANINGS } from "./look.js";
import { Lanes } from "./lanes.js";
import { RunList } from "./list.js";
import { Run, listen, rates } from "./store.js";
import { showFacts, showHead } from "./head.js";

const SCORE_NAMES = {
  lipschitz: ["Lipschitz factors of uploads", "The filter suspects uploads above the line."],
  distance: ["Distance of uploads", "Measured from what the defence compares them with."],
  entropy: ["Entropy of uploads", "Uploads above the line are refused."],
  cosine: ["Cosine of uploads", "With what the defence compares them with."],
  score: ["Score of uploads", "What the defence decides by."],
  weight: ["Trust in clients", "The weight of each uploading client; a typical one has 1."],
  norm: ["Norm of uploads", "This defence gives no score of its own."],
};
const LOGARITHMIC = new Set(["lipschitz", "distance", "norm"]);

export class Overview {
  constructor(view) {
    const query = new URLSearchParams(location.search);
    this.front = query.get("run");
    this.with = query.getAll("with");
    this.lanesFrom = Number(query.get("lanes") ?? 0) || 0;
    this.runs = new Map();
    this.charts = new Map();
    this.scores = new Chart("Scores of uploads", { beside: BESIDE });
    this.pace = new Chart("Updates per second", { floor: 0, height: 150 });
    this.staleness = new Chart("Staleness of uploads", { floor: 0, counts: true, xLabel: "staleness", height: 150 });
    this.lanes = new Lanes((first) => this.turn(first));
    this.list = new RunList(this);
    this.latest = make("div");
    this.settings = make("div");
    this.provenance = make("div");
    this.small = make("div", { class: "stack" }, this.pace.root, this.staleness.root);
    this.top = make("div", { class: "grid" });
    this.below = make("div", { class: "grid" }, this.scores.root, this.small);
    view.replaceChildren(
      this.list.root,
      this.top,
      this.lanes.root,
      this.below,
      card("What the server did with the last uploads", this.latest),
      folded("Settings", this.settings),
      folded("Where the numbers come from", this.provenance),
    );
    this.connect();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.lanes.repaint());
  }

  connect() {
    this.connection?.close();
    const query = new URLSearchParams();
    if (this.front) query.append("run", this.front);
    for (const name of this.with) query.append("with", name);
    query.append("lanes", this.lanesFrom);
    const handlers = { run: (message) => this.take(message), runs: (message) => this.showList(message) };
    this.connection = listen(`api/stream?${query}`, handlers, (connected) => this.status(connected));
  }

  status(connected) {
    say(byId("link"), connected ? "live" : "connection lost, trying again …");
    byId("link").dataset.connected = connected;
  }

  turn(first) {
    this.lanesFrom = Math.max(0, first);
    this.remember();
    this.connect();
  }

  remember() {
    history.replaceState(null, "", address({ run: this.front, with: this.with, lanes: this.lanesFrom || null }));
  }

  take(message) {
    const name = message.head.name;
    if (!this.front) {
      this.front = name;
      this.remember(); // links from here lead to this run, whichever is the newest by then
      this.list.fill();
    }
    if (!this.runs.has(name)) this.runs.set(name, new Run(name));
    this.runs.get(name).take(message);
    if (name === this.front) this.showFront(this.runs.get(name));
    this.showCurves();
  }

  showFront(run) {
    showHead(run.head);
    showFacts(run.head);
    say(byId("headline"), run.suspects);
    say(byId("refused"), run.refused);
    say(byId("explanation"), run.explanation);
    this.showScores(run);
    const [x, y] = rates(run.pace);
    const line = { label: "updates/s", value: (_, v) => figure(v), style: () => ({ stroke: GREEN, width: 2, fill: `${GREEN}22` }) };
    this.pace.show([line], [x, y], `Now ${figure(run.head.per_second)}.`);
    if (!x.length) say(this.pace.empty, "Not known yet.");
    this.showStaleness(run.staleness);
    this.lanes.show(run.lanes, run.head);
    showLatest(this.latest, run);
    showSettings(this.settings, run.settings);
    showProvenance(this.provenance, run.provenance);
  }

  shows(name) {
    return name === this.front || this.with.includes(name);
  }

  shown() {
    return [this.front, ...this.with].map((name) => this.runs.get(name)).filter(Boolean);
  }

  showCurves() {
    const runs = this.shown();
    const metrics = [...new Set(runs.flatMap((run) => Object.keys(run.curves.metrics)))];
    for (const metric of metrics) if (!this.charts.has(metric)) this.addCurve(metric);
    for (const [metric, chart] of this.charts) {
      const having = runs.map((run, i) => [run, i]).filter(([run]) => run.curves.metrics[metric]);
      chart.root.hidden = !having.length;
      if (!having.length) continue;
      const series = having.map(([run, i]) => ({ label: runs.length > 1 ? run.name : metric.toUpperCase(), spanGaps: true, points: { size: 6 }, value: (_, v) => figure(v), style: () => lineStyle(i), shape: i }));
      const last = having.map(([run]) => `${run.name} at ${figure(run.curves.metrics[metric].at(-1))}`);
      chart.show(series, joined(having.map(([run]) => [run.curves.round, run.curves.metrics[metric]])), `Last: ${last.join(", ")}.`);
    }
  }

  addCurve(metric) {
    const chart = new Chart(`${metric.toUpperCase()} over rounds`, { floor: 0 });
    const meaning = MEANINGS[metric];
    chart.tell(meaning ? `${meaning[0].toUpperCase()}${meaning.slice(1)}.` : "");
    this.charts.set(metric, chart);
    this.top.append(chart.root);
    // Two columns without a hole: a lone curve has the scores beside it, and the two small charts
    // share a place, or have one each.
    const lone = this.charts.size % 2 === 1;
    if (lone) this.top.append(this.scores.root);
    else this.below.prepend(this.scores.root);
    this.small.classList.toggle("apart", lone);
    this.scores.resize(lone ? HEIGHT : 2 * HEIGHT);
  }

  showScores({ scores, deciding }) {
    const [title, note] = SCORE_NAMES[deciding.name] ?? ["Scores of uploads", ""];
    say(this.scores.title, title);
    this.scores.root.hidden = !deciding.name;
    const logarithmic = LOGARITHMIC.has(deciding.name);
    this.scores.logarithmic = logarithmic;
    const usable = (value) => (value !== null && (!logarithmic || value > 0) ? value : null);
    const chosen = (wanted) => scores.value.map((value, i) => (wanted(scores.kind[i]) ? usable(value) : null));
    const told = (_, v, __, i) => (v === null || v === undefined || i === null ? "–" : `${figure(v)}, client ${scores.client[i]}`);
    const [good, bad] = deciding.malicious ? ["honest", "malicious"] : ["accepted", "refused"];
    const first = (kind) => (deciding.malicious ? kind < 2 : kind % 2 === 1);
    const series = [
      { label: good, paths: marks("circle"), value: told, style: () => ({ stroke: colour("accepted"), width: 1 }) },
      { label: bad, paths: marks("cross"), value: told, style: () => ({ stroke: VERMILLION, width: 1.5 }) },
    ];
    const data = [scores.round, chosen(first), chosen((kind) => !first(kind))];
    if (deciding.bound) {
      series.push({ label: deciding.bound, spanGaps: true, value: (_, v) => figure(v), style: () => ({ stroke: colour("ink"), width: 2 }) });
      data.push(scores.bound.map(usable));
    }
    this.scores.tell(`${note} ${deciding.malicious ? "Crosses are uploads of malicious clients." : "Crosses were refused."}`);
    this.scores.show(series, data, `${note} ${whole(scores.round.length)} uploads are drawn.`);
  }

  showStaleness({ width, bars: counts }) {
    const x = counts.map((_, i) => i * width + (width - 1) / 2); // the middle of what a bar counts
    this.staleness.barWidth = width; // the outer bars need room beside them
    const label = "uploads";
    const series = [{ label, paths: bars(), value: (_, v) => whole(v), style: () => ({ stroke: tone(BLUE), fill: `${tone(BLUE)}99`, width: 1 }) }];
    const total = counts.reduce((sum, count) => sum + count, 0);
    const mean = total ? counts.reduce((sum, count, i) => sum + count * (i + 0.5 * (width - 1) / width) * width, 0) / total : null;
    this.staleness.show(series, total ? [x, counts] : [[]], `Mean ${figure(mean)} rounds.`);
  }

  showList({ runs: list, unreadable }) {
    this.list.root.hidden = list.length < 2 && !unreadable.length;
    if (!list.length) say(byId("headline"), "No run here yet. As soon as one begins, it is shown.");
    if (this.waiting && list.length) this.connect(); // the first one has turned up
    this.waiting = !list.length;
    this.list.show(list, unreadable);
  }

  lay(name, over) {
    this.with = this.with.filter((other) => other !== name).concat(over ? [name] : []).slice(-6);
    this.remember();
    this.list.fill();
    this.showCurves();
    this.connect();
  }
}

function folded(title, content) {
  return make("details", { class: "card" }, make("summary", {}, title), content);
}

export function outcome(upload) {
  if (upload.accepted) return upload.stepped ? "accepted, the model moved" : "accepted, kept for a later step";
  return upload.stepped ? "refused, the model moved without it" : "refused, the model stayed";
}

export function uploadsTable(label, uploads, clientOf = null) {
  const headings = [["Round", "n"], ...(clientOf ? [["Client", "n"]] : []), ["What happened", ""], ["Why", ""], ["Staleness", "n"], ["Scores", ""]];
  const rows = uploads.map((one) => [
    whole(one.round),
    ...(clientOf ? [clientOf(one)] : []),
    make("span", { class: one.accepted ? "yes" : "no" }, outcome(one)),
    one.reason || "–",
    whole(one.staleness),
    Object.entries(one.scores).map(([name, value]) => `${name} ${figure(value)}`).join(", ") || "–",
  ]);
  return table(label, headings, rows);
}

function showLatest(place, run) {
  if (place.contains(document.activeElement)) return; // do not take the focus from a reader
  const link = (one) => make("a", { href: address({ client: one.client }) }, String(one.client));
  place.replaceChildren(run.latest.length ? uploadsTable("Last uploads", run.latest.slice(0, 12), link) : make("p", { class: "note" }, "No upload yet."));
}

function showSettings(place, settings) {
  const text = JSON.stringify(settings);
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  const items = Object.entries(settings).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  place.replaceChildren(items.length ? make("dl", { class: "settings" }, ...items) : make("p", { class: "note" }, "There are none in the run folder."));
}

function showProvenance(place, { facts, sessions }) {
  const text = JSON.stringify([facts, sessions]);
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  const keys = [...new Set(sessions.flatMap(Object.keys))];
  const rows = keys.map((key) => [key, ...sessions.map((one) => one[key] ?? "–")]);
  place.replaceChildren(
    table("Origin", [["What", ""], ["", ""]], Object.entries(facts)),
    table("Sessions", [["Session", ""], ...sessions.map((_, i) => [String(i + 1), ""])], rows),
  );
}
