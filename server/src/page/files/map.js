// The key space: a column for each partition, as wide as asked for, and in it a cell for each node.

import { el, keep, number, size, showKey, bytesOf, rate, hue } from "./parts.js";

const LEAST = 0.25; // of an even share: nothing vanishes
const LATE_MS = 1000; // as `status` judges: beyond it a replica is behind

const root = document.getElementById("map");
const lanes = document.getElementById("lanes");
const segments = document.getElementById("segments");
const detail = document.getElementById("detail");
const found = document.getElementById("found");
const input = document.getElementById("key");
const widths = document.getElementById("width");

let view = null; // what is drawn: nodes, partitions, groups
let current = null; // the partition whose details are shown
let measure = "keys";

for (const name of ["keys", "bytes", "load", "even"]) {
  const radio = el("input", { type: "radio", name: "width", value: name, checked: name === measure });
  radio.addEventListener("change", () => {
    measure = name;
    draw();
  });
  widths.append(el("label", {}, radio, el("span", {}, name)));
}

const ends = (partition) => ({
  low: bytesOf(partition.low, partition.low_b64) ?? new Uint8Array(),
  high: bytesOf(partition.high, partition.high_b64),
});

export const rangeOf = (partition) => {
  const { low, high } = ends(partition);
  return `${low.length ? showKey(low) : ""}..${high ? showKey(high) : ""}`;
};

const compare = (a, b) => {
  const shared = Math.min(a.length, b.length);
  for (let at = 0; at < shared; at += 1) if (a[at] !== b[at]) return a[at] - b[at];
  return a.length - b.length;
};

// What one types: a text, or 0x and bytes.
const typed = (text) => {
  const hex = /^0x((?:[0-9a-f]{2})+)$/i.exec(text);
  return hex ? Uint8Array.from(hex[1].match(/../g), (byte) => parseInt(byte, 16)) : new TextEncoder().encode(text);
};

export function showMap(status, groups) {
  const nodes = status.nodes.map((node) => node.node);
  const partitions = status.partitions.filter((partition) => partition.partition !== "p0");
  partitions.sort((a, b) => compare(ends(a).low, ends(b).low));
  view = { status, nodes, partitions, groups };
  draw();
}

function shares() {
  const of = {
    keys: (partition) => partition.keys,
    bytes: (partition) => partition.bytes,
    load: (partition) => partition.commands_per_second,
    even: () => 1,
  }[measure];
  const all = view.partitions.map(of);
  const sum = all.reduce((a, b) => a + b, 0);
  const count = all.length;
  const raised = all.map((value) => Math.max(sum > 0 ? value / sum : 1 / count, LEAST / count));
  const whole = raised.reduce((a, b) => a + b, 0);
  return raised.map((share) => share / whole);
}

function draw() {
  if (!view) return;
  const { nodes, partitions } = view;
  root.style.setProperty("--nodes", nodes.length);
  keep(lanes, nodes, (node) => node, () => el("div", {}, el("i"), el("span")), (row, node) => {
    row.firstChild.style.background = hue(node);
    row.lastChild.textContent = node;
  });
  if (!partitions.some((partition) => partition.partition === current)) current = partitions[0]?.partition ?? null;
  const most = Math.max(1, ...partitions.map((partition) => partition.commands_per_second));
  const all = shares();
  let left = 0;
  const places = new Map(partitions.map((partition, at) => {
    const place = { left, width: all[at] };
    left += all[at];
    return [partition.partition, place];
  }));
  keep(segments, partitions, (partition) => partition.partition, (partition) => {
    const column = el("button", { type: "button", class: "segment" },
      el("div", { class: "title" }, el("span", { class: "rate" }), el("b"), el("span", { class: "range mono" }),
        el("i", { class: "track" }), el("i", { class: "bar" })),
      el("div", { class: "cells" }));
    column.dataset.partition = partition.partition;
    // A new one grows out of the place where it was cut off.
    const place = places.get(partition.partition);
    column.style.left = `${(place.left + place.width) * 100}%`;
    column.style.width = "0%";
    return column;
  }, (column, partition) => {
    const { left, width } = places.get(partition.partition);
    requestAnimationFrame(() => {
      column.style.left = `${left * 100}%`;
      column.style.width = `${width * 100}%`;
    });
    const [load, name, range, , bar] = column.firstChild.children;
    name.textContent = partition.partition;
    range.textContent = rangeOf(partition);
    load.textContent = `${rate(partition.commands_per_second)}/s`;
    bar.style.width = `${(partition.commands_per_second / most) * 100}%`;
    keep(column.lastChild, nodes, (node) => node, () => el("div", { class: "cell" }), (cell, node) => drawCell(cell, partition, node));
    const leader = partition.leader ? `leader ${partition.leader}` : "no leader";
    column.setAttribute("aria-label", `${partition.partition}, keys ${rangeOf(partition)}, ${leader}, ` +
      `${partition.replicas.map((replica) => `${replica.node} ${stateOf(partition, replica).words}`).join(", ")}`);
    column.title = `${partition.partition}  ${rangeOf(partition)}  ${leader}`;
    const isCurrent = partition.partition === current;
    column.setAttribute("aria-current", isCurrent);
    column.tabIndex = isCurrent ? 0 : -1;
  });
  drawDetail();
  find();
}

function stateOf(partition, replica) {
  if (!replica.up) return { kind: "down", words: "no answer", short: "✕ no answer" };
  if (partition.leader === replica.node) return { kind: "leader", words: "leads", short: "leader" };
  const behind = replica.lag_instances > 0 ? `${number(replica.lag_instances)} behind` : "";
  if (!replica.voter) return { kind: "learner", words: "learns", short: `learns ${behind}` };
  if (replica.lag_ms > LATE_MS) return { kind: "late", words: `is ${behind || "behind"}`, short: behind || `${number(replica.lag_ms / 1000)} s behind` };
  return { kind: "follower", words: "follows", short: "" };
}

function drawCell(cell, partition, node) {
  const replica = partition.replicas.find((replica) => replica.node === node);
  if (!replica) {
    cell.removeAttribute("data-kind");
    cell.replaceChildren();
    return;
  }
  const { kind, short } = stateOf(partition, replica);
  if (!cell.firstChild) cell.append(el("div", {}, el("span")));
  cell.dataset.kind = kind;
  cell.style.setProperty("--node", hue(node));
  cell.firstChild.firstChild.textContent = short;
}

const legend = [
  ["leader", "leads"], ["follower", "follows"], ["learner", "learns: it is moving here"], ["late", "behind its leader"],
  ["down", "does not answer"],
];
for (const [kind, words] of legend) {
  const cell = el("span", { class: "cell" }, el("div"));
  cell.dataset.kind = kind;
  document.getElementById("legend").append(el("li", {}, cell, words));
}

function drawDetail() {
  const partition = view.partitions.find((partition) => partition.partition === current);
  if (!partition) return detail.replaceChildren();
  const group = view.groups.get(partition.leader)?.[current];
  const lags = partition.replicas.filter((replica) => replica.node !== partition.leader && replica.up);
  const rows = [
    [`${partition.partition} holds`, rangeOf(partition)],
    ["leader, ballot", `${partition.leader ?? "none"}, ${partition.ballot}`],
    ["keys", `${number(partition.keys)}, ${size(partition.bytes)}`],
    ["writes", `${rate(partition.commands_per_second)}/s`],
    ["decided, trimmed", `#${number(partition.decided_upto)}, #${number(partition.trimmed_upto)}`],
    ["behind", lags.map((replica) => `${replica.node} ${number(replica.lag_instances)}`).join("  ") || "nobody to follow"],
    ["window", `${number(partition.window)}${group ? ` of ${number(group.window_limit)}` : ""} in flight`],
    ["batch", `${partition.batch_commands.toFixed(1)} commands`],
    ["replies held by the gate", number(partition.replies_held)],
    ["ticket placed, released", `${partition.last_ticket ?? "none"}, ${partition.released ?? "none"}`],
    ["instances executed ahead", group ? `${number(group.speculative_instances)}, undo ${size(partition.undo_bytes)}` : "not told"],
    ["undone since the start", group ? `${number(group.undone_commands)} commands, ${number(group.rollbacks)} times` : "not told"],
    ["sessions", number(partition.sessions)],
    ["refuses writes that grow", partition.refuses ?? "no"],
  ];
  keep(detail, rows, (row, at) => at, () => el("div", {}, el("dt"), el("dd")), (item, [name, value]) => {
    item.firstChild.textContent = name;
    item.lastChild.textContent = value;
    item.lastChild.title = value;
  });
}

function choose(partition, focus) {
  current = partition;
  draw();
  if (focus) segments.querySelector(`[data-partition="${partition}"]`)?.focus();
}

segments.addEventListener("focusin", (event) => {
  const partition = event.target.closest(".segment")?.dataset.partition;
  if (partition && partition !== current) choose(partition, false);
});
segments.addEventListener("pointerover", (event) => {
  const partition = event.target.closest(".segment")?.dataset.partition;
  if (partition && partition !== current) choose(partition, false);
});
segments.addEventListener("keydown", (event) => {
  const at = view?.partitions.findIndex((partition) => partition.partition === current) ?? -1;
  const last = (view?.partitions.length ?? 0) - 1;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
  if (to === undefined || last < 0) return;
  event.preventDefault();
  choose(view.partitions[Math.min(Math.max(to, 0), last)].partition, true);
});

// Where is my key?
function find() {
  const text = input.value;
  const key = typed(text);
  const holds = (partition) => {
    const { low, high } = ends(partition);
    return text !== "" && compare(low, key) <= 0 && (!high || compare(key, high) < 0);
  };
  for (const column of segments.children) delete column.dataset.found;
  const partition = view?.partitions.find(holds);
  found.textContent = partition ? `in ${partition.partition}, ${partition.leader ? `led by ${partition.leader}` : "no leader"}` : "";
  if (partition) segments.querySelector(`[data-partition="${partition.partition}"]`)?.setAttribute("data-found", "");
}
input.addEventListener("input", find);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/INPUT|TEXTAREA/.test(document.activeElement?.tagName ?? "")) {
    event.preventDefault();
    input.focus();
    input.select();
  }
});
