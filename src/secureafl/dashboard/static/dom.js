// Elements from data. Whatever a run folder holds reaches the page as text only, never as markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Text is only set where it changed, so that screen readers and selections are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function byId(id) {
  return document.getElementById(id);
}

const GROUPED = new Intl.NumberFormat("en");

export function whole(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  if (size >= 1000) return GROUPED.format(Math.round(value));
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(3);
}

export function percent(share) {
  return share === null || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;
}

export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 2) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

// A table whose headings are [text, class] pairs and whose rows are lists of texts or elements.
export function table(label, headings, rows) {
  const head = headings.map(([text, kind]) => make("th", { scope: "col", class: kind ?? "" }, text));
  const lines = rows.map((row) => make("tr", {}, ...row.map((cell, i) => cellOf(cell, i, headings[i]))));
  const found = make("table", { class: "wide" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, found);
}

// The label stands before the cell where a small screen shows a row as a list.
function cellOf(cell, place, [text, kind]) {
  if (place === 0) return make("th", { scope: "row", class: kind ?? "" }, cell);
  return make("td", { class: kind ?? "", "data-label": text.textContent ?? text }, cell);
}

export function card(title, ...children) {
  return make("section", { class: "card" }, make("h2", {}, title), ...children);
}

export function address(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const one of [value].flat()) if (one !== null && one !== undefined) query.append(name, one);
  }
  const text = query.toString();
  return text ? `?${text}` : "./";
}
