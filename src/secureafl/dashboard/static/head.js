// The top of every page: which run, what state it is in, what is wrong with its folder.
import { ago, byId, figure, make, percent, say, whole } from "./dom.js";

const WORDS = { running: "● running", finished: "✓ finished", quiet: "‖ no news" };
let voiced = 0;

export function showHead(head) {
  document.title = `${head.name} · SecureAFL`;
  say(byId("name"), head.name);
  const state = byId("state");
  const since = head.state === "quiet" && head.age !== null ? ` (last upload ${ago(head.age)})` : "";
  say(state, WORDS[head.state] + since);
  state.dataset.state = head.state;
  showProblems(head.problems);
  announce(`${head.name}: ${head.state}, ${whole(head.rounds)} rounds. ${byId("headline").textContent}`);
}

export function showProblems(problems) {
  const place = byId("problems");
  const text = JSON.stringify(problems);
  if (place.dataset.shown === text) return;
  place.dataset.shown = text;
  place.replaceChildren(...problems.map((problem) => make("p", { class: "problem" }, problem)));
}

export function showFacts(head) {
  const share = head.uploads ? head.accepted / head.uploads : null;
  const planned = head.planned === null ? "" : ` of ${whole(head.planned)}`;
  const clients = head.clients === null ? whole(head.seen) : `${whole(head.seen)} of ${whole(head.clients)}`;
  const figures = Object.entries(head.metrics).map(([name, value]) => [`${name.toUpperCase()}, ${head.state === "finished" ? "late mean" : "last"}`, figure(value)]);
  facts([
    ["Round", `${whole(head.rounds)}${planned}`],
    ...figures,
    ...(head.caught[1] ? [["Attackers caught", of(head.caught)]] : []),
    [head.deployed ? "Clients silenced" : "Honest clients silenced", of(head.silenced)],
    ["Accepted", percent(share)],
    ["Updates/s", figure(head.per_second)],
    ["Clients seen", clients],
    ["Defence", head.defense],
    ["Attack", head.attack],
    ["Task", head.task],
    ["Seed", head.seed || "–"],
  ]);
}

function of([clients, all]) {
  return all ? `${whole(clients)} of ${whole(all)}` : "–";
}

export function facts(pairs) {
  const place = byId("facts");
  if (place.children.length !== pairs.length) place.replaceChildren(...pairs.map(() => make("div", {}, make("dt"), make("dd"))));
  pairs.forEach(([name, value], i) => {
    say(place.children[i].firstChild, name);
    say(place.children[i].lastChild, value);
  });
}

// For screen readers: only now and then, so that listening is bearable.
function announce(text) {
  if (performance.now() - voiced < 20000 && voiced) return;
  voiced = performance.now();
  say(byId("voice"), text);
}
