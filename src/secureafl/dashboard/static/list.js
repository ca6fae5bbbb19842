// All runs, to be sorted and filtered; the newest first.
import { address, figure, make, percent, say, table, whole } from "./dom.js";

const WHEN = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const main = (run) => Object.keys(run.metrics).find((name) => name !== "asr");
// Heading, what a run is sorted by, and what is shown of it; numbers stand right.
const COLUMNS = [
  ["Run", (run) => run.name],
  ["Laid over", (run, page) => Number(page.shows(run.name)), (run, page) => overlay(run.name, page)],
  ["Error", (run) => run.metrics[main(run)] ?? null, (run) => (main(run) ? `${main(run).toUpperCase()} ${figure(run.metrics[main(run)])}` : "–"), "n"],
  ["ASR", (run) => run.metrics.asr ?? null, (run) => figure(run.metrics.asr), "n"],
  ["Honest accepted", (run) => run.accepted.honest ?? null, (run) => percent(run.accepted.honest ?? null), "n"],
  ["Malicious accepted", (run) => run.accepted.malicious ?? null, (run) => percent(run.accepted.malicious ?? null), "n"],
  ["Defence", (run) => run.defense],
  ["Attack", (run) => run.attack],
  ["Seed", (run) => Number(run.seed), (run) => run.seed, "n"],
  ["Round", (run) => run.rounds, (run) => whole(run.rounds), "n"],
  ["State", (run) => (run.finished ? "finished" : "unfinished")],
  ["Written", (run) => run.written, (run) => (run.written ? WHEN.format(1000 * run.written) : "–"), "n"],
];
const WRITTEN = COLUMNS.length - 1;

export class RunList {
  // `page` knows which run is in front, which are laid over it, and what to do with a tick.
  constructor(page) {
    Object.assign(this, { page, runs: [], column: WRITTEN, down: true });
    this.filter = make("input", { id: "filter", type: "search", autocomplete: "off", oninput: () => this.fill() });
    this.count = make("span", { class: "note", role: "status" });
    this.place = make("div", { class: "runs" });
    this.unreadable = make("p", { class: "note" });
    const find = make("div", { class: "find" }, make("label", { for: "filter" }, "Filter"), this.filter, this.count);
    this.root = make("section", { class: "card" }, make("div", { class: "line" }, make("h2", {}, "Runs"), find), this.place, this.unreadable);
    this.root.hidden = true;
  }

  show(runs, unreadable) {
    say(this.unreadable, unreadable.join(" · "));
    if (JSON.stringify(runs) === this.shown) return;
    this.shown = JSON.stringify(runs);
    this.runs = runs;
    this.fill();
  }

  // Every word must occur somewhere in the run's name, defence, attack or state.
  wanted() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.name, run.defense, run.attack, `seed${run.seed}`, run.finished ? "finished" : "unfinished"].join(" ").toLowerCase();
    return this.runs.filter((run) => words.every((word) => text(run).includes(word)));
  }

  fill() {
    const [, key] = COLUMNS[this.column];
    const found = this.wanted().sort((a, b) => compare(key(a, this.page), key(b, this.page), this.down));
    const rows = found.map((run) => COLUMNS.map(([, of, shown], i) => (i === 0 ? this.link(run) : (shown ?? of)(run, this.page))));
    const focused = document.activeElement?.dataset?.focus;
    this.place.replaceChildren(table("Runs", COLUMNS.map(([name, , , kind], i) => [this.heading(name, i), kind ?? ""]), rows));
    this.place.querySelectorAll("thead th")[this.column].setAttribute("aria-sort", this.down ? "descending" : "ascending");
    if (focused !== undefined) this.place.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
    say(this.count, found.length === this.runs.length ? "" : `${whole(found.length)} of ${whole(this.runs.length)}`);
  }

  heading(name, column) {
    const arrow = column === this.column ? (this.down ? " ↓" : " ↑") : "";
    return make("button", { type: "button", class: "sort", "data-focus": `sort ${name}`, onclick: () => this.sort(column) }, name, make("span", { "aria-hidden": "true" }, arrow));
  }

  sort(column) {
    this.down = column === this.column ? !this.down : column === WRITTEN; // the newest first
    this.column = column;
    this.fill();
  }

  link(run) {
    const others = this.page.with.filter((name) => name !== run.name);
    const target = address({ run: run.name, with: others, client: null, lanes: null });
    return make("a", { href: target, "aria-current": run.name === this.page.front ? "page" : null, "data-focus": `run ${run.name}` }, run.name);
  }
}

function overlay(name, page) {
  const box = make("input", { type: "checkbox", "aria-label": `Lay ${name} over`, "data-focus": `lay ${name}`, onchange: () => page.lay(name, box.checked) });
  box.checked = page.shows(name);
  box.disabled = name === page.front;
  return box;
}

// What has no value comes last, whichever way.
function compare(a, b, down) {
  const missing = [a, b].map((value) => value === null || Number.isNaN(value));
  if (missing[0] || missing[1]) return missing[0] - missing[1];
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return down ? -order : order;
}
