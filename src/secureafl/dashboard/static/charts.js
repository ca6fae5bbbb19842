// Charts as in the report: the same colours, and shapes that say the same once more.
import uPlot from "./uPlot.esm.js";
import { figure, make, say, table, whole } from "./dom.js";
import { COLOURS, ON_DARK } from "./look.js";

export const [BLUE, VERMILLION, GREEN] = COLOURS;
const DASHES = [[], [8, 4], [8, 4, 2, 4], [2, 3]];
export const HEIGHT = 220;
export const BESIDE = 0.015;
const MOST_ROWS = 200;
const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].flatMap((power) => [1, 2, 5].map((first) => first * 10 ** power)); // between ticks
const dark = matchMedia("(prefers-color-scheme: dark)");

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function tone(name) {
  return (dark.matches && ON_DARK[name]) || name;
}

export function lineStyle(number) {
  return { stroke: tone(COLOURS[number % COLOURS.length]), dash: DASHES[number % DASHES.length], width: 2 };
}

// One chart with a title, a sentence, the picture, and its figures as a table for those who want them.
export class Chart {
  // `counts`: its values are whole numbers, and so are its labels; `beside`: the share of the width
  // that is left free on either side, for marks at the ends.
  constructor(title, { logarithmic = false, floor = null, counts = false, beside = 0, xLabel = "round", height = HEIGHT } = {}) {
    Object.assign(this, { logarithmic, floor, counts, beside, xLabel, height, barWidth: 0, plot: null, shape: "", data: [[]], series: [] });
    this.title = make("h2", {}, title);
    this.note = make("p", { class: "note" });
    this.picture = make("div", { class: "chart", role: "img", "aria-label": title });
    this.empty = make("p", { class: "note" }, "Nothing to draw yet.");
    this.figures = make("details", { ontoggle: () => this.fillTable() }, make("summary", {}, "Figures as a table"));
    this.root = make("section", { class: "card" }, this.title, this.note, this.picture, this.empty, this.figures);
    new ResizeObserver(() => this.fit()).observe(this.picture);
    dark.addEventListener("change", () => this.build());
  }

  // `series`: label, and what uPlot knows of a line; `data`: rounds, then values of each series.
  show(series, data, sentence) {
    const shape = JSON.stringify([series.map((one) => [one.label, one.shape]), this.logarithmic]);
    Object.assign(this, { series, data });
    const any = data[0].length > 0;
    this.empty.hidden = any;
    this.picture.hidden = this.figures.hidden = !any;
    this.picture.setAttribute("aria-label", `${this.title.textContent}. ${sentence}`);
    if (!any) return;
    if (shape !== this.shape || !this.plot) {
      this.shape = shape;
      this.build();
    } else {
      this.plot.setData(data);
    }
    if (this.figures.open) this.fillTable();
  }

  width() {
    return Math.max(200, Math.floor(this.picture.clientWidth));
  }

  resize(height) {
    this.height = height;
    this.fit();
  }

  fit() {
    if (this.plot && (this.plot.width !== this.width() || this.plot.height !== this.height)) this.plot.setSize({ width: this.width(), height: this.height });
  }

  build() {
    if (!this.data[0].length) return;
    this.plot?.destroy();
    const lines = this.series.map((one) => ({ ...one, points: one.points ?? { show: false }, ...(one.style?.() ?? {}) }));
    this.plot = new uPlot(
      {
        width: this.width(),
        height: this.height,
        scales: { x: { time: false, range: (_, low, high) => this.across(low, high) }, y: this.scale() },
        axes: [{ ...axis(this.xLabel), incrs: WHOLE }, { ...axis(""), size: 56, values: (_, ticks) => ticks.map(short), ...this.ticks() }],
        series: [{ label: this.xLabel, value: (_, v) => whole(v) }, ...lines],
        cursor: { points: { size: 7 }, drag: { x: true, y: false } },
        legend: { live: true, markers: { dash: (plot, i) => markerDash(plot.series[i].dash) } },
      },
      this.data,
      this.picture,
    );
  }

  across(low, high) {
    const free = this.barWidth / 2 + this.beside * (high - low);
    return [low - free, high + free];
  }

  ticks() {
    if (this.logarithmic) return { splits: decades };
    return this.counts ? { incrs: WHOLE } : {};
  }

  scale() {
    if (this.logarithmic) return { distr: 3, range: (_, low, high) => wide(low, high) };
    const floor = this.floor;
    return { range: (_, low, high) => (floor === null ? padded(low, high) : [Math.min(floor, low ?? 0), high > floor ? high * 1.05 : floor + 1]) };
  }

  fillTable() {
    if (!this.figures.open) return;
    const stride = Math.ceil(this.data[0].length / MOST_ROWS);
    const places = this.data[0].map((_, i) => i).filter((i) => (this.data[0].length - 1 - i) % stride === 0);
    const rows = places.reverse().map((i) => [whole(this.data[0][i]), ...this.data.slice(1).map((column) => figure(column[i]))]);
    const headings = [[this.xLabel, "n"], ...this.series.map((one) => [one.label, "n"])];
    this.figures.replaceChildren(this.figures.firstChild, table(`${this.title.textContent}, figures`, headings, rows));
  }

  tell(text) {
    say(this.note, text);
  }
}

function short(tick) {
  if (tick === null) return ""; // a tick of a logarithmic axis that has no room for its number
  const size = Math.abs(tick);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return tick.toExponential(0).replace("+", "");
  return size >= 1e4 ? `${+(tick / 1000).toPrecision(6)}k` : String(+tick.toPrecision(6));
}

function axis(label) {
  const grid = { stroke: colour("line"), width: 1 };
  const room = label ? { label, labelSize: 16, labelGap: -4, labelFont: FONT, size: 30 } : {};
  return { ...room, font: FONT, stroke: colour("soft"), grid, gap: 4, ticks: { ...grid, size: 4 } };
}

const FONT = "12px system-ui, sans-serif";

// Powers of ten, at most seven of them.
function decades(_, __, low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const stride = Math.ceil((last - first + 1) / 7);
  return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, i) => 10 ** (first + i * stride));
}

function wide(low, high) {
  if (!(low > 0) || !(high > 0)) return [0.1, 10];
  return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.0001))];
}

function padded(low, high) {
  if (low === null || low === undefined) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - room, high + room];
}

function markerDash(dash) {
  return dash?.length ? (dash[0] < 5 ? "dotted" : "dashed") : "solid";
}

// Single marks instead of a line.
export function marks(kind) {
  return (plot, series, first, last) => {
    const path = new Path2D();
    const size = 2.5 * devicePixelRatio;
    const [rounds, values] = [plot.data[0], plot.data[series]];
    for (let i = first; i <= last; i++) {
      if (values[i] === null || values[i] === undefined) continue;
      const x = plot.valToPos(rounds[i], "x", true);
      const y = plot.valToPos(values[i], "y", true);
      if (kind === "cross") {
        path.moveTo(x - size, y - size);
        path.lineTo(x + size, y + size);
        path.moveTo(x + size, y - size);
        path.lineTo(x - size, y + size);
      } else {
        path.moveTo(x + size, y);
        path.arc(x, y, size, 0, 2 * Math.PI);
      }
    }
    return { stroke: path, fill: null };
  };
}

export function bars() {
  return uPlot.paths.bars({ size: [0.8, 60] });
}

// Lines of several runs, each over its own rounds.
export function joined(tables) {
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

// The last uploads of a client, oldest first: low for accepted, tall for refused.
export function drawMarks(canvas, text) {
  const ratio = devicePixelRatio;
  const [width, height] = [canvas.clientWidth || 192, canvas.clientHeight || 20];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const step = width / 48;
  const [good, bad] = [colour("accepted"), colour("refused")];
  [...text].forEach((mark, i) => {
    const tall = mark === "0" ? height : height * 0.35;
    pen.fillStyle = mark === "0" ? bad : good;
    pen.fillRect(width - (text.length - i) * step, height - tall, Math.max(1, step - 1), tall);
  });
}
