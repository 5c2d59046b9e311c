// The last ten minutes: what the nodes said of each second, added up on one grid of seconds, and drawn.

import { el, keep, number, rate, size, hue, clock } from "./parts.js";

const SECONDS = 600; // what nodes remember
const LEAST = 120; // the charts grow with what is known
const DELAY = 2; // the newest seconds are not told by every node yet
const GAP_MS = 700; // samples of a node are a second apart, or about that
const FIELDS = ["span_ms", "writes", "reads", "failed", "latencies", "flush_us_p99", "hold_us_p99", "held", "tickets_in_flight",
  "queries", "undone", "memory_bytes", "log_bytes"];

const samples = new Map(); // of each node: { newest, list }
const marks = []; // what happened: { at, glyph, text, state }
const charts = [];
let nodes = [];

// Takes in what one event brings of a node.
export function noteSamples(node, told, now) {
  const known = samples.get(node) ?? { newest: 0, list: [] };
  samples.set(node, known);
  const count = told.span_ms.length;
  if (count === 0) return;
  if (told.newest < known.newest) known.newest = 0; // it was started again
  let end = now - told.age_ms;
  const added = [];
  for (let at = count - 1; at >= 0; at -= 1) {
    if (told.newest - (count - 1 - at) <= known.newest) break;
    const sample = Object.fromEntries(FIELDS.map((field) => [field, told[field][at]]));
    added.push({ ...sample, end });
    end -= sample.span_ms;
  }
  known.newest = told.newest;
  known.list.push(...added.reverse());
  const oldest = now - (SECONDS + 10) * 1000;
  while (known.list.length && known.list[0].end < oldest) known.list.shift();
}

export const hasSamples = (node) => (samples.get(node)?.list.length ?? 0) > 0;

// The time that a share of requests stayed below, in milliseconds. Buckets are powers of 2; within one, evenly.
export function quantile(buckets, share) {
  const all = buckets.reduce((sum, count) => sum + count, 0);
  if (all === 0) return null;
  let rest = all * share;
  for (let at = 0; at < buckets.length; at += 1) {
    if (buckets[at] > 0 && rest <= buckets[at]) return (16 * 2 ** (at + rest / buckets[at])) / 1000;
    rest -= buckets[at];
  }
  return (32 * 2 ** (buckets.length - 1)) / 1000;
}

// One row for each second and node: the sample that held then.
function grid(now) {
  const last = Math.floor(now / 1000) - DELAY;
  const oldest = Math.min(now, ...[...samples.values()].map(({ list }) => (list.length ? list[0].end : now)));
  const count = Math.min(SECONDS, Math.max(LEAST, Math.ceil((now - oldest) / 60000) * 60));
  const seconds = Array.from({ length: count }, (_, at) => last - count + 1 + at);
  const rows = new Map();
  for (const node of nodes) {
    const list = samples.get(node)?.list ?? [];
    let at = 0;
    rows.set(node, seconds.map((second) => {
      const time = second * 1000;
      while (at < list.length && list[at].end < time) at += 1;
      const here = list[at];
      if (here && here.end - here.span_ms - GAP_MS <= time) return here;
      const before = list[at - 1];
      return before && time - before.end <= GAP_MS ? before : null;
    }));
  }
  return { seconds, rows };
}

const perSecond = (field) => (all) => sum(all, (sample) => (sample[field] * 1000) / sample.span_ms);
const total = (field) => (all) => sum(all, (sample) => sample[field]);
const worst = (field) => (all) => {
  const values = all.map((sample) => sample[field]).filter((us) => us > 0);
  return values.length ? Math.max(...values) / 1000 : null;
};
const sum = (all, of) => (all.length ? all.reduce((sum, sample) => sum + of(sample), 0) : null);
const latency = (share) => (all) => {
  const buckets = [];
  for (const sample of all) sample.latencies.forEach((count, at) => (buckets[at] = (buckets[at] ?? 0) + count));
  return quantile(Array.from(buckets, (count) => count ?? 0), share);
};

export const ms = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${number(value * 1000)} µs`;
  return value < 10000 ? `${value < 10 ? value.toFixed(1) : number(value)} ms` : `${number(value / 1000)} s`;
};
const perS = (value) => (value === null || value === undefined ? "–" : `${rate(value)}/s`);
const count = (value) => (value === null || value === undefined ? "–" : number(value));
const bytes = (value) => (value === null || value === undefined ? "–" : size(value));
const axisBytes = (value) => (value === 0 ? "0" : size(value));

const SOLID = [], DASH = [5, 3], DOTS = [1, 3];
const line = (name, of, color, dash = SOLID) => ({ name, of, color, dash });
const CHARTS = [
  { title: "Throughput", show: perS, axis: rate, series: [
    line("writes", perSecond("writes"), "--n1"), line("reads", perSecond("reads"), "--n2", DASH)] },
  { title: "Latency of requests", show: ms, axis: axisMs, log: true, series: [
    line("p50", latency(0.5), "--n3"), line("p99", latency(0.99), "--n2", DASH), line("p99.9", latency(0.999), "--n4", DOTS)] },
  { title: "Flush of the log, p99", show: ms, axis: axisMs, log: true, each: (sample) => (sample.flush_us_p99 > 0 ? sample.flush_us_p99 / 1000 : null) },
  { title: "Memory", show: bytes, axis: axisBytes, each: (sample) => sample.memory_bytes, base: 2 },
  { title: "Refused, and undone", show: perS, axis: rate, series: [
    line("refused or failed", perSecond("failed"), "--n4"), line("undone", perSecond("undone"), "--n5", DASH)] },
  { title: "Gate: replies waited, p99", show: ms, axis: axisMs, log: true, series: [line("waited", worst("hold_us_p99"), "--n5")] },
  { title: "Queries with a ticket", show: count, axis: rate, series: [
    line("in flight", total("tickets_in_flight"), "--n1"), line("ended/s", perSecond("queries"), "--n6", DASH)] },
  { title: "Log on disk", show: bytes, axis: axisBytes, each: (sample) => sample.log_bytes, base: 2 },
];

function axisMs(value) {
  if (value === 0) return "0";
  return value >= 1000 ? `${value / 1000} s` : value < 1 ? `${+(value * 1000).toPrecision(2)} µs` : `${+value.toPrecision(2)} ms`;
}

const DASHES = [SOLID, DASH, DOTS, [8, 3, 1, 3]];

function seriesOf(chart) {
  if (chart.series) return chart.series;
  return nodes.map((node, at) => line(node, (_, of) => (of.get(node) ? chart.each(of.get(node)) : null), hueName(node), DASHES[at % DASHES.length]));
}

const hueName = (node) => hue(node).slice(4, -1);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function build(chart) {
  const holder = el("div", { class: "chart" }, el("h3", {}, chart.title), el("div", { class: "keys" }), el("div", { class: "plot" }));
  document.getElementById("charts").append(holder);
  holder.setAttribute("role", "img");
  const made = { ...chart, holder, lines: [], plot: null, data: null, names: "" };
  new ResizeObserver(() => made.plot?.setSize(sizeOf(made))).observe(holder);
  return made;
}

const sizeOf = (chart) => ({ width: Math.max(120, chart.holder.clientWidth), height: 128 });

// Ticks of a byte axis are multiples of powers of 2.
const BINARY = Array.from({ length: 45 }, (_, at) => 2 ** at);

function plot(chart) {
  chart.plot?.destroy();
  const dim = color("--faint");
  const grid = { stroke: color("--line"), width: 1 };
  const font = "11px system-ui, sans-serif";
  chart.plot = new uPlot({
    ...sizeOf(chart),
    padding: [6, 18, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: "time" }, points: { size: 5 }, drag: { x: false, y: false }, y: false },
    scales: {
      x: { time: true },
      y: chart.log
        ? { distr: 3, range: (_, min, max) => [10 ** Math.floor(Math.log10(Math.max(min ?? 0.1, 0.01))), 10 ** Math.ceil(Math.log10(Math.max(max ?? 10, 0.1) * 1.01))] }
        : { range: (_, min, max) => [0, (max ?? 0) > 0 ? max * 1.15 : 1] },
    },
    axes: [
      { stroke: dim, font, size: 20, gap: 2, grid: { show: false }, ticks: { ...grid, size: 3 }, space: 60, values: (_, ticks) => ticks.map((tick) => (tick % 60 ? "" : clock(tick * 1000, false))) },
      { stroke: dim, font, size: 50, gap: 4, grid, ticks: { show: false }, space: 28, splits: chart.log ? decades : undefined, incrs: chart.base ? BINARY : undefined, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : chart.axis(tick))) },
    ],
    series: [{}, ...chart.lines.map(({ color: name, dash }) => ({ stroke: color(name), width: 1.5, dash: dash.length ? dash : undefined, points: { show: false }, spanGaps: false }))],
    hooks: { draw: [drawMarks], setCursor: [(made) => drawKeys(chart, made.cursor.idx)] },
  }, chart.data, chart.holder.lastChild);
}

function decades(_, axis, min, max) {
  const first = Math.round(Math.log10(min));
  return Array.from({ length: Math.round(Math.log10(max)) - first + 1 }, (_, at) => 10 ** (first + at));
}

// What happened, as lines through the charts.
function drawMarks(made) {
  const { ctx, bbox } = made;
  const scale = devicePixelRatio;
  ctx.save();
  for (const mark of marks) {
    const x = made.valToPos(mark.at / 1000, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = color(mark.state === "bad" ? "--bad" : mark.state === "good" ? "--good" : "--faint");
    ctx.lineWidth = scale;
    ctx.setLineDash([2 * scale, 2 * scale]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + 8 * scale);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.font = `${9 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.fillText(mark.glyph, x, bbox.top + 6 * scale);
  }
  ctx.restore();
}

function drawKeys(chart, index) {
  const at = index ?? chart.data[0].length - 1;
  keep(chart.holder.children[1], chart.lines, (line) => line.name, (line) => {
    const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    swatch.setAttribute("width", "18");
    swatch.setAttribute("height", "2");
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
    stroke.setAttribute("d", "M0 1H18");
    stroke.setAttribute("stroke", `var(${line.color})`);
    stroke.setAttribute("stroke-width", "2");
    stroke.setAttribute("stroke-dasharray", line.dash.join(" "));
    swatch.append(stroke);
    return el("span", {}, swatch, `${line.name} `, el("b"));
  }, (item, line) => {
    item.lastChild.textContent = chart.show(chart.data[chart.lines.indexOf(line) + 1][at]);
  });
}

// The values of the newest second, for the figures above.
export function showTime(all, now) {
  nodes = all;
  if (!charts.length) charts.push(...CHARTS.map(build));
  const { seconds, rows } = grid(now);
  document.getElementById("time-title").textContent = `Last ${seconds.length / 60} minutes`;
  const of = seconds.map((_, at) => new Map(nodes.map((node) => [node, rows.get(node)[at]])));
  const present = of.map((row) => [...row.values()].filter(Boolean));
  const newest = present.at(-1);
  if (!document.hidden) {
    for (const chart of charts) {
      chart.lines = seriesOf(chart);
      chart.data = [seconds, ...chart.lines.map((line) => seconds.map((_, at) => line.of(present[at], of[at])))];
      const names = chart.lines.map((line) => line.name).join();
      if (!chart.plot || names !== chart.names) {
        chart.names = names;
        plot(chart);
      } else {
        chart.plot.setData(chart.data);
      }
      drawKeys(chart, chart.plot.cursor.idx);
      chart.holder.setAttribute("aria-label", `${chart.title}: ${chart.lines.map((line, at) => `${line.name} ${chart.show(chart.data[at + 1].at(-1))}`).join(", ")}`);
    }
  }
  return {
    writes: perSecond("writes")(newest), reads: perSecond("reads")(newest), p50: latency(0.5)(newest), p99: latency(0.99)(newest),
    hold: worst("hold_us_p99")(newest),
  };
}

// Of what happened in one second, the worst is drawn.
export function mark(event) {
  const last = marks.at(-1);
  if (last && event.at - last.at < 1500) {
    if (event.state === "bad" && last.state !== "bad") Object.assign(last, event, { at: last.at });
    return;
  }
  marks.push(event);
  while (marks.length && marks[0].at < Date.now() - SECONDS * 1000) marks.shift();
}

// Colours have changed.
export function recolor() {
  for (const chart of charts) if (chart.plot) plot(chart);
}
