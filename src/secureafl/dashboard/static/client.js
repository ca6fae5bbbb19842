// The page of one client, with its whole history.
import { address, byId, card, figure, make, percent, say, whole } from "./dom.js";
import { BESIDE, BLUE, Chart, VERMILLION, colour, marks, tone } from "./charts.js";
import { listen } from "./store.js";
import { facts, showHead, showProblems } from "./head.js";
import { uploadsTable } from "./overview.js";

const NAMES = ["round", "accepted", "staleness", "value", "bound", "distance"];
const TITLES = { lipschitz: "Lipschitz factor", distance: "Distance", norm: "Norm of uploads", entropy: "Entropy", cosine: "Cosine", score: "Score", weight: "Trust" };
const LOGARITHMIC = new Set(["lipschitz", "distance", "norm"]);

export class ClientPage {
  constructor(view, run, client) {
    Object.assign(this, { run, client, columns: Object.fromEntries(NAMES.map((name) => [name, []])) });
    this.score = new Chart("Score over rounds", { beside: BESIDE });
    this.distance = new Chart("Distance over rounds", { beside: BESIDE, logarithmic: true });
    this.staleness = new Chart("Staleness over rounds", { beside: BESIDE, counts: true });
    this.latest = make("div");
    const back = make("p", {}, make("a", { href: address({ client: null }) }, "← all clients"));
    view.replaceChildren(back, make("div", { class: "grid three" }, this.score.root, this.distance.root, this.staleness.root), card("Its last uploads", this.latest));
    document.title = `Client ${client} · SecureAFL`;
    say(byId("headline"), `Client ${client}: reading its history …`);
    const query = new URLSearchParams(run === null ? { client } : { run, client });
    const handlers = { client: (message) => this.take(message), problem: (text) => showProblems([text]) };
    listen(`api/client?${query}`, handlers, (connected) => {
      say(byId("link"), connected ? "live" : "connection lost, trying again …");
      byId("link").dataset.connected = connected;
    });
  }

  take(message) {
    for (const name of NAMES) {
      const column = this.columns[name];
      column.length = message.start;
      for (const value of message[name]) column.push(value);
    }
    showHead(message.head);
    document.title = `Client ${this.client} · ${message.head.name} · SecureAFL`;
    this.tell(message.lane, message.head.deployed);
    this.draw(this.score, message.name, this.columns.value, this.columns.bound);
    this.distance.root.hidden = message.measure === null || message.measure === message.name;
    this.draw(this.distance, message.measure, this.columns.distance, null);
    const line = { label: "staleness", paths: marks("circle"), value: (_, v) => whole(v), style: () => ({ stroke: tone(BLUE), width: 1 }) };
    this.staleness.show([line], [this.columns.round, this.columns.staleness], "");
    if (!this.latest.contains(document.activeElement)) this.latest.replaceChildren(uploadsTable("Its last uploads", message.latest));
  }

  tell(lane, deployed) {
    if (!lane) {
      say(byId("headline"), `Client ${this.client} has sent no upload that counts.`);
      return;
    }
    say(byId("headline"), `Client ${this.client}: suspicion ${lane.suspicion.toFixed(2)} (${lane.level}${lane.malicious ? ", known to be malicious" : ""})`);
    const who = lane.malicious ? "Caught" : deployed ? "Silenced" : "Honest, but silenced";
    say(byId("refused"), lane.mostly_refused ? `${who}: ${whole(lane.refused)} of its ${whole(lane.uploads)} uploads were refused.` : "");
    const reasons = Object.entries(lane.reasons).map(([reason, count]) => `${reason || "no reason given"} ×${whole(count)}`);
    facts([
      ["Place by suspicion", `${whole(lane.rank)} of ${whole(lane.of)}`],
      ["Uploads", whole(lane.uploads)],
      ["Refused", percent(lane.refused / lane.uploads)],
      ["Why", reasons.join(", ") || "–"],
      ["Distance relative to the median", lane.times === null ? "–" : `×${figure(lane.times)}`],
      ["Mean staleness", lane.mean_staleness.toFixed(1)],
      ["Last upload", `round ${whole(lane.last)}`],
    ]);
  }

  draw(chart, name, values, bounds) {
    chart.root.hidden ||= !name;
    if (!name) return;
    say(chart.title, `${TITLES[name] ?? name} over rounds`);
    chart.logarithmic = LOGARITHMIC.has(name);
    const usable = (value) => (value !== null && (!chart.logarithmic || value > 0) ? value : null);
    const { round, accepted } = this.columns;
    const series = [
      { label: "accepted", paths: marks("circle"), value: (_, v) => figure(v), style: () => ({ stroke: colour("accepted"), width: 1 }) },
      { label: "refused", paths: marks("cross"), value: (_, v) => figure(v), style: () => ({ stroke: VERMILLION, width: 1.5 }) },
    ];
    const data = [round, values.map((v, i) => (accepted[i] ? usable(v) : null)), values.map((v, i) => (accepted[i] ? null : usable(v)))];
    if (bounds?.some((value) => value !== null)) {
      series.push({ label: "bound", spanGaps: true, value: (_, v) => figure(v), style: () => ({ stroke: colour("ink"), width: 2 }) });
      data.push(bounds.map(usable));
    }
    chart.show(series, data, `${whole(round.length)} uploads are drawn.`);
  }
}
