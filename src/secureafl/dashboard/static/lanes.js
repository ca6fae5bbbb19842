// One lane per client, the most suspicious first.
import { address, ago, figure, make, percent, say, whole } from "./dom.js";
import { drawMarks } from "./charts.js";

const HEADINGS = [
  ["Client", ""],
  ["Suspicion", ""],
  ["Last uploads, newest right", ""],
  ["Refused", "n"],
  ["Why", ""],
  ["Distance", "n"],
  ["Staleness", "n"],
  ["Last seen", "n"],
  ["Uploads", "n"],
];

const NAMES = ["refused", "why", "distance", "staleness", "seen", "uploads"]; // the cells of text

export class Lanes {
  constructor(turn) {
    this.rows = new Map();
    this.body = make("tbody");
    const head = HEADINGS.map(([text, kind]) => make("th", { scope: "col", class: kind }, text));
    this.table = make("table", { class: "wide lanes" }, make("thead", {}, make("tr", {}, ...head)), this.body);
    this.count = make("span", { class: "note" });
    this.back = make("button", { type: "button", onclick: () => turn(this.first - this.size) }, "← more suspicious");
    this.on = make("button", { type: "button", onclick: () => turn(this.first + this.size) }, "less suspicious →");
    this.find = make("input", { id: "find", inputmode: "numeric", size: 6, autocomplete: "off" });
    const form = make("form", { class: "find", onsubmit: (e) => this.open(e) }, make("label", { for: "find" }, "Client"), this.find, make("button", {}, "Open"));
    const key = make("span", { class: "key note" }, make("i", { class: "mark accepted" }), " accepted ", make("i", { class: "mark refused" }), " refused");
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Clients by suspicion" }, this.table);
    this.root = make(
      "section",
      { class: "card" },
      make("div", { class: "line" }, make("h2", {}, "Clients by suspicion"), key, form),
      scroll,
      make("div", { class: "line pager" }, this.back, this.count, this.on),
    );
  }

  open(event) {
    event.preventDefault();
    if (/^\d+$/.test(this.find.value.trim())) location.href = address({ client: this.find.value.trim() });
    else this.find.focus();
  }

  // Rows do not jump away under a pointer, nor from under the keyboard's focus.
  get held() {
    return this.body.contains(document.activeElement) || this.body.matches(":hover");
  }

  show({ rows, first, total, size }, head) {
    const held = this.held && first === this.first;
    Object.assign(this, { first, size });
    if (!held) this.arrange(rows);
    for (const row of rows) if (this.rows.has(row.client)) this.fill(this.rows.get(row.client), row, head);
    const last = Math.min(first + size, total);
    say(this.count, total ? `${whole(first + 1)} to ${whole(last)} of ${whole(total)}${held ? " · order held while you are here" : ""}` : "no client has uploaded yet");
    this.back.hidden = first === 0;
    this.on.hidden = last >= total;
  }

  arrange(rows) {
    const fresh = new Map(rows.map((row) => [row.client, this.rows.get(row.client) ?? this.lane(row.client)]));
    this.rows = fresh;
    const wanted = [...fresh.values()].map((lane) => lane.row);
    if (wanted.length !== this.body.children.length || wanted.some((row, i) => row !== this.body.children[i])) this.body.replaceChildren(...wanted);
  }

  lane(client) {
    const cells = Object.fromEntries(NAMES.map((name, i) => [name, make("td", { class: name === "why" ? "why" : "n", "data-label": HEADINGS[i + 3][0] })]));
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span"));
    const score = make("span", { class: "score" });
    const tag = make("span", { hidden: "" });
    const canvas = make("canvas", { class: "strip", role: "img" });
    const link = make("a", { href: address({ client }) }, String(client));
    const row = make("tr", {}, make("th", { scope: "row" }, link, tag), make("td", { class: "suspicion", "data-label": "Suspicion" }, make("span", {}, meter, score)), make("td", { "data-label": "Last uploads" }, canvas));
    row.append(...Object.values(cells));
    return { row, cells, meter, score, canvas, tag, marks: "" };
  }

  fill(lane, data, head) {
    const { cells } = lane;
    const name = data.level;
    lane.row.dataset.level = name;
    lane.row.dataset.client = data.client;
    lane.meter.firstChild.style.width = `${Math.round(100 * data.suspicion)}%`;
    say(lane.score, `${data.suspicion.toFixed(2)}${name === "low" ? "" : ` ${name}`}`);
    tell(lane.tag, data, head.deployed);
    say(cells.refused, percent(data.uploads ? data.refused / data.uploads : null));
    say(cells.why, Object.entries(data.reasons).map(([reason, count]) => `${reason || "no reason given"} ×${whole(count)}`).join(", ") || "–");
    say(cells.distance, data.times === null ? "–" : `${figure(data.distance)} (×${data.times.toFixed(data.times < 10 ? 1 : 0)})`);
    say(cells.staleness, `${whole(data.staleness)} (mean ${data.mean_staleness.toFixed(1)})`);
    const live = head.state === "running" && data.when !== null;
    say(cells.seen, live ? ago(Date.now() / 1000 - data.when) : `round ${whole(data.last)}`);
    say(cells.uploads, whole(data.uploads));
    if (lane.marks !== data.marks || !lane.drawn) {
      lane.marks = data.marks;
      lane.drawn = lane.canvas.isConnected;
      drawMarks(lane.canvas, data.marks);
      const refused = [...data.marks].filter((mark) => mark === "0").length;
      lane.canvas.setAttribute("aria-label", `of the last ${data.marks.length} uploads ${refused} were refused`);
    }
  }

  repaint() {
    for (const lane of this.rows.values()) drawMarks(lane.canvas, lane.marks);
  }
}

// Who is honest is known in a simulation only.
function tell(tag, { malicious, mostly_refused: refused }, deployed) {
  tag.hidden = !malicious && !refused;
  tag.className = malicious ? "malicious" : "silenced";
  say(tag, malicious ? (refused ? "malicious, caught" : "malicious") : deployed ? "silenced" : "honest, silenced");
}
