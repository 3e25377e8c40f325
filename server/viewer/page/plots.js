// The plots of a run, drawn from their data: lines, steps, bars and rows of bars.

import { brief, count, fixed, h, percent, put, s } from "./dom.js";
import { get } from "./data.js";
import { link } from "./route.js";

const WIDTH = 480;
const HEIGHT = 232;
const PLOT_LEFT = 60;
const PLOT_RIGHT = 14;
const PLOT_TOP = 8;
const PLOT_BOTTOM = 40;
const ROW = 24;
const LABELS = 150;
// Series of the same meaning have the same colour in every plot; the others take the free ones in turn.
const MEANING = {
  passed: "good", "not passed": "faint", ok: "good", error: "bad", invalid: "warn", timeout: "violet", "not executed": "faint",
  "truncated:turns": "warn", "truncated:seconds": "4", "still working": "muted", "equal scores": "faint", "different scores": "accent",
  failed: "bad", interrupted: "violet", cancelled: "cyan",
};
const FREE = ["accent", "2", "good", "bad", "violet", "4", "cyan", "muted"];
const LINKED = { "tool-use": "tool", "solve-rate": "task" };

export async function plotsView(run, shell) {
  const state = h("p", { class: "dim", role: "status" });
  const cards = h("div", { class: "plot-cards" });
  const element = h("div", { class: "plots padded" }, h("h1", {}, "Plots"), state, cards);
  let version = null;
  async function draw() {
    const found = await get(["runs", run, "plots"], { after: version });
    const all = shell.overview?.totals?.sessions ?? 0;
    put(state, found.error ? h("span", { class: "bad" }, `can't be counted: ${found.error}`)
      : found.complete ? `${count(found.sessions)} sessions`
        : `${count(found.counted)} of ${count(all)} sessions counted so far`);
    if (!found.plots || found.version === version) return;
    version = found.version;
    const open = new Set([...cards.querySelectorAll("details[open]")].map(one => one.dataset.plot));
    put(cards, found.plots.map(plot => card(plot, run, open.has(plot.name))));
  }
  return { element, title: `${run} · plots`, up: ["run", run, "sessions"], ready: draw, changed: draw, tick: draw, key: () => false };
}

function card(plot, run, open) {
  const empty = !plot.series.length || !plot.x.length;
  const colours = coloursOf(plot.series);
  return h("figure", { class: `plot${empty ? " is-empty" : ""}`, "data-name": plot.name },
    h("figcaption", {}, h("h2", {}, plot.title), h("p", { class: "dim" }, plot.note)),
    !empty && plot.series.length > 1 && h("div", { class: "legend" }, plot.series.map((one, at) => h("span", { title: one.name }, h("span", { class: `plot-key series-${colours[at]}` }), one.name))),
    !empty && drawing(plot, colours, run),
    !empty && table(plot, open));
}

function coloursOf(series) {
  const taken = new Set(series.map(one => MEANING[one.name]).filter(Boolean));
  const free = FREE.filter(colour => !taken.has(colour));
  let next = 0;
  return series.map(one => MEANING[one.name] ?? (free.length ? free : FREE)[next++ % (free.length || FREE.length)]);
}

function drawing(plot, colours, run) {
  return { lines, steps, bars, rows }[plot.kind](plot, colours, run);
}

// A scale from data to pixels, with round ticks.
function scale(low, high, from, to, { whole = false, log = false } = {}) {
  if (high <= low) high = low + 1;
  const at = log ? value => from + ((Math.log2(value) - Math.log2(low)) / (Math.log2(high) - Math.log2(low))) * (to - from) : value => from + ((value - low) / (high - low)) * (to - from);
  const ticks = [];
  if (log) {
    const step = Math.max(1, Math.ceil((Math.log2(high) - Math.log2(low)) / 7));
    for (let power = Math.ceil(Math.log2(low) - 1e-9); power <= Math.log2(high) + 1e-9; power += step) ticks.push(2 ** power);
    return { at, ticks };
  }
  const rough = (high - low) / (Math.abs(to - from) > 300 ? 7 : 5);
  const unit = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map(n => n * unit).find(n => n >= rough - 1e-12);
  if (whole) step = Math.max(1, Math.round(step));
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n += 1) ticks.push(n * step);
  return { at, ticks };
}

const shownValue = (plot, value) => (value === null ? "–" : plot.shares ? percent(value) : Number.isInteger(value) ? count(value) : fixed(value));

function frame(plot, x, y, marks, { xText = value => shownNumber(value) } = {}) {
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot-drawing", role: "img", "aria-label": `${plot.title}: ${plot.note}` },
    y.ticks.map(value => [
      s("line", { class: "plot-grid", x1: PLOT_LEFT, x2: WIDTH - PLOT_RIGHT, y1: y.at(value), y2: y.at(value) }),
      s("text", { class: "plot-tick", x: PLOT_LEFT - 7, y: y.at(value) + 3.5, "text-anchor": "end" }, plot.shares ? `${Number((100 * value).toPrecision(3))}%` : shownNumber(value)),
    ]),
    x.ticks.map(value => s("text", { class: "plot-tick", x: x.at(value), y: HEIGHT - PLOT_BOTTOM + 16, "text-anchor": "middle" }, xText(value))),
    marks,
    s("line", { class: "plot-axis", x1: PLOT_LEFT, x2: WIDTH - PLOT_RIGHT, y1: HEIGHT - PLOT_BOTTOM, y2: HEIGHT - PLOT_BOTTOM }),
    s("text", { class: "plot-label", x: (PLOT_LEFT + WIDTH - PLOT_RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, plot.x_label),
    s("text", { class: "plot-label", x: 12, y: (HEIGHT - PLOT_BOTTOM) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(HEIGHT - PLOT_BOTTOM) / 2})` }, plot.y_label));
}

const shownNumber = value => (Math.abs(value) >= 1e6 ? brief(value) : count(Number(value.toPrecision(6)))).replace("-", "−");

const floor = HEIGHT - PLOT_BOTTOM;
const numbers = values => values.filter(value => value !== null && value !== undefined);

function lines(plot, colours) {
  const all = plot.series.flatMap(one => numbers([...one.y, ...(one.low ?? []), ...(one.high ?? [])]));
  const x = scale(plot.x[0], plot.x.at(-1), PLOT_LEFT + 8, WIDTH - PLOT_RIGHT - 8, { whole: true });
  const y = plot.shares ? scale(0, 1, floor, PLOT_TOP + 6) : scale(Math.min(0, ...all), Math.max(...all), floor - 4, PLOT_TOP + 6);
  const few = plot.x.length <= 30;
  const marks = plot.series.map((one, at) => {
    const points = one.y.map((value, k) => (value === null ? null : [x.at(plot.x[k]), y.at(value)]));
    const band = one.low && one.high && one.low.map((value, k) => (value === null || one.high[k] === null ? null : k)).filter(k => k !== null);
    return s("g", { class: `series-${colours[at]}` },
      band?.length > 1 && s("path", { class: "plot-band", d: `M ${band.map(k => `${x.at(plot.x[k])} ${y.at(one.high[k])}`).join(" L ")} L ${band.toReversed().map(k => `${x.at(plot.x[k])} ${y.at(one.low[k])}`).join(" L ")} Z` }),
      s("path", { class: "plot-line", d: pathOf(points) }),
      points.map((point, k) => point && s("circle", { class: few ? "plot-point" : "plot-point is-hidden", cx: point[0], cy: point[1], r: 3.2 }, s("title", {}, `${one.name}, ${shownNumber(plot.x[k])}: ${shownValue(plot, one.y[k])}`))));
  });
  return frame(plot, x, y, marks);
}

function pathOf(points) {
  let path = "";
  let started = false;
  for (const point of points) {
    if (point) path += `${started ? "L" : "M"} ${point[0]} ${point[1]} `;
    started = Boolean(point);
  }
  return path;
}

function binned(plot, highest) {
  const whole = !plot.log_x && Math.abs(plot.x[0] % 1) === 0.5; // bins around whole numbers
  const x = scale(plot.x[0], plot.x.at(-1), PLOT_LEFT + 4, WIDTH - PLOT_RIGHT - 4, { whole, log: plot.log_x });
  return { x, y: scale(0, highest || 1, floor, PLOT_TOP + 6, { whole: !plot.shares }) };
}

function rangeOf(plot, k) {
  const [from, to] = [plot.x[k], plot.x[k + 1]];
  if (!plot.log_x && Math.abs(from % 1) === 0.5) return to - from === 1 ? shownNumber(from + 0.5) : `${shownNumber(from + 0.5)} to ${shownNumber(to - 0.5)}`;
  return `${fixed(from)} to ${fixed(to)}`;
}

function bars(plot, colours) {
  const bins = plot.x.length - 1;
  const sums = Array.from({ length: bins }, (_, k) => plot.series.reduce((sum, one) => sum + (one.y[k] ?? 0), 0));
  const { x, y } = binned(plot, Math.max(...sums));
  const below = Array(bins).fill(0);
  const marks = plot.series.map((one, at) => s("g", { class: `series-${colours[at]}` }, one.y.map((value, k) => {
    if (!value) return null;
    const [left, right] = [x.at(plot.x[k]), x.at(plot.x[k + 1])];
    const [bottom, top] = [y.at(below[k]), y.at(below[k] + value)];
    below[k] += value;
    const gap = Math.min(1.5, (right - left) * 0.08);
    return s("rect", { class: "plot-bar", x: left + gap, y: top, width: right - left - 2 * gap, height: bottom - top },
      s("title", {}, `${one.name}, ${rangeOf(plot, k)}: ${shownValue(plot, value)}`));
  })));
  return frame(plot, x, y, marks);
}

function steps(plot, colours) {
  const { x, y } = binned(plot, Math.max(...plot.series.flatMap(one => numbers(one.y))));
  const zero = plot.x[0] < 0 && plot.x.at(-1) > 0 && s("line", { class: "plot-zero", x1: x.at(0), x2: x.at(0), y1: PLOT_TOP, y2: floor });
  const marks = plot.series.map((one, at) => {
    const outline = one.y.map((value, k) => `L ${x.at(plot.x[k])} ${y.at(value ?? 0)} L ${x.at(plot.x[k + 1])} ${y.at(value ?? 0)}`).join(" ");
    const path = `M ${x.at(plot.x[0])} ${floor} ${outline} L ${x.at(plot.x.at(-1))} ${floor}`;
    return s("g", { class: `series-${colours[at]}` }, s("path", { class: "plot-band", d: `${path} Z` }), s("path", { class: "plot-line", d: path }),
      one.y.map((value, k) => value > 0 && s("rect", { class: "plot-hit", x: x.at(plot.x[k]), y: y.at(value), width: x.at(plot.x[k + 1]) - x.at(plot.x[k]), height: floor - y.at(value) }, s("title", {}, `${one.name}, ${rangeOf(plot, k)}: ${shownValue(plot, value)}`))));
  });
  return frame(plot, x, y, [zero, marks]);
}

function rows(plot, colours, run) {
  const sums = plot.x.map((_, k) => plot.series.reduce((sum, one) => sum + (one.y[k] ?? 0), 0));
  const highest = plot.shares ? 1 : Math.max(...sums, 0) || 1;
  const height = plot.x.length * ROW + 8;
  const x = value => LABELS + (value / highest) * (WIDTH - LABELS - 60);
  const field = LINKED[plot.name];
  return s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "plot-drawing", role: "group", "aria-label": `${plot.title}: ${plot.note}` },
    plot.x.map((label, k) => {
      const middle = k * ROW + ROW / 2 + 4;
      const short = label.length > 22 ? `${label.slice(0, 21)}…` : label;
      const text = s("text", { class: "plot-row-label", x: LABELS - 8, y: middle + 4, "text-anchor": "end" }, short, s("title", {}, label));
      const linked = field && !/^\d+ others$/.test(label);
      let left = 0;
      return s("g", {}, linked ? s("a", { href: link(["run", run, "sessions"], { [field]: label }) }, text) : text,
        s("line", { class: "plot-grid", x1: LABELS, x2: WIDTH - 60, y1: middle, y2: middle }),
        plot.series.map((one, at) => {
          const value = one.y[k] ?? 0;
          if (!value) return null;
          const bar = s("rect", { class: `plot-bar series-${colours[at]}`, x: x(left), y: middle - 7, width: Math.max(0.5, x(left + value) - x(left)), height: 14 }, s("title", {}, `${label}, ${one.name}: ${shownValue(plot, value)}`));
          left += value;
          return bar;
        }),
        s("text", { class: "plot-tick", x: x(left) + 6, y: middle + 4 }, plot.shares ? percent(sums[k]) : count(sums[k])));
    }));
}

// The numbers of a plot; they are written when the table is opened.
function table(plot, open) {
  const body = h("div", { class: "table-frame" });
  const fill = () => {
    if (body.childElementCount) return;
    const size = plot.series[0].y.length;
    const label = k => (plot.x.length > size ? rangeOf(plot, k) : typeof plot.x[k] === "string" ? plot.x[k] : shownNumber(plot.x[k]));
    put(body, h("table", { class: "plain-table" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, plot.kind === "rows" ? "" : plot.x_label), plot.series.map(one => h("th", { scope: "col" }, one.name)))),
      h("tbody", {}, Array.from({ length: size }, (_, k) => h("tr", {}, h("th", { scope: "row" }, label(k)), plot.series.map(one => h("td", { class: "number" }, shownValue(plot, one.y[k]))))))));
  };
  if (open) fill();
  return h("details", { class: "plot-table", "data-plot": plot.name, open, ontoggle: event => { if (event.target.open) fill(); } }, h("summary", {}, "Numbers"), body);
}
