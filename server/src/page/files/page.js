// The page: what a node tells each second, shown. Nothing here changes the cluster.

import * as demoPart from "./demo.js";
import { showMap } from "./map.js";
import { clock, el, hue, keep, lasts, number, rate, size } from "./parts.js";
import { Stream } from "./stream.js";
import { hasSamples, mark, ms, noteSamples, recolor, showTime } from "./time.js";

// --- State ----------------------------------------------------------------------------------------------------------

const page = document.documentElement;
const at = (id) => document.getElementById(id);
const isDemo = page.dataset.role === "demo";
const demo = isDemo ? demoPart : null;

let newest = null; // the newest event
let before = null; // the status before it
const groups = new Map(); // how the replicas of each node run
const happened = [];
const begun = new Map(); // when a change was first seen

const GLYPHS = { good: "●", warn: "▲", bad: "■" };
const stateOf = (health) => ({ healthy: "good", degraded: "warn" })[health] ?? "bad";

// --- Events ---------------------------------------------------------------------------------------------------------

function take(event) {
  const now = Date.now();
  if (!event.status) {
    say("warn", "not yet", event.nothing.join("; "));
    return;
  }
  newest = event;
  for (const [node, told] of Object.entries(event.nodes)) {
    noteSamples(node, told.samples, now);
    if (Object.keys(told.groups).length) groups.set(node, told.groups);
  }
  for (const node of groups.keys()) if (!event.nodes[node]) groups.delete(node);
  notice(event.status, now);
  show(now);
}

// What differs from the second before.
function notice(status, now) {
  const was = before;
  before = status;
  for (const change of status.changes) if (!begun.has(change)) begun.set(change, now);
  for (const change of begun.keys()) if (!status.changes.includes(change)) begun.delete(change);
  if (!was || was.cluster !== status.cluster) return;
  const note = (state, glyph, text) => {
    happened.unshift({ at: now, state, glyph, text });
    happened.length = Math.min(happened.length, 60);
    mark({ at: now, glyph, state, text });
  };
  const by = (list, name) => new Map(list.map((each) => [each[name], each]));
  const nodes = by(was.nodes, "node");
  for (const node of status.nodes) {
    const then = nodes.get(node.node);
    if (!then) note("good", "＋", `${node.node} joins`);
    else if (then.up && !node.up) note("bad", "✕", `${node.node} does not answer`);
    else if (!then.up && node.up) note("good", "●", `${node.node} answers`);
    nodes.delete(node.node);
  }
  for (const node of nodes.keys()) note("", "－", `${node} is removed`);
  const partitions = by(was.partitions, "partition");
  const led = new Map();
  for (const partition of status.partitions) {
    const name = partition.partition === "p0" ? "directory" : partition.partition;
    const then = partitions.get(partition.partition);
    partitions.delete(partition.partition);
    if (!then) note("good", "＋", `${name} is new`);
    else if (then.leader !== partition.leader) {
      const way = partition.leader ? `${then.leader ?? "nobody"} → ${partition.leader}` : `${then.leader} → nobody`;
      led.set(way, [...(led.get(way) ?? []), name]);
    }
  }
  for (const [way, names] of led) note(way.endsWith("nobody") ? "bad" : "", "◆", `leader of ${names.join(" ")}: ${way}`);
  for (const name of partitions.keys()) note("", "－", `${name} is merged away`);
  for (const change of status.changes) if (!was.changes.includes(change)) note("", "▸", `begun: ${change}`);
  for (const change of was.changes) if (!status.changes.includes(change)) note("", "▪", `ended: ${change}`);
  if (was.health !== status.health) note(stateOf(status.health), GLYPHS[stateOf(status.health)], status.sentence);
}

// --- What is shown --------------------------------------------------------------------------------------------------

function say(state, word, sentence) {
  at("health").dataset.state = state;
  at("health").firstElementChild.textContent = GLYPHS[state];
  at("word").textContent = word;
  at("sentence").textContent = sentence;
  document.title = `${GLYPHS[state]} ${word} – coppice`;
}

function show(now) {
  const { status, remedies, tuning } = newest;
  say(stateOf(status.health), status.health, status.sentence.replace(/^[^:]*: /, ""));
  const directory = status.partitions.find((partition) => partition.partition === "p0");
  at("facts").textContent = status.cluster
    ? `cluster ${status.cluster.slice(0, 8)} · directory ${directory?.leader ?? "without leader"} · map version ${status.map_version} · ` +
      `feature level ${status.feature_level}`
    : "";
  showWrong(status, remedies);
  const nodes = status.nodes.map((node) => node.node);
  showMap(status, groups);
  keep(at("changes"), status.changes, (change) => change, () => el("li", {}, el("span"), el("time")), (item, change) => {
    item.firstChild.textContent = change;
    item.lastChild.textContent = `for ${lasts(now - begun.get(change))}`;
  });
  const figures = showTime(nodes, now);
  showFigures(status, figures);
  const silent = nodes.filter((node) => status.nodes.find((each) => each.node === node).up && !hasSamples(node));
  at("partial").textContent = silent.length ? `not told by ${silent.join(" ")}${status.feature_level < 2 ? ": feature level 1" : ""}` : "";
  showNodes(status);
  showTuning(status, tuning);
  keep(at("events"), happened, (event) => `${event.at} ${event.text}`, (event) => {
    const item = el("li", {}, el("time", {}, clock(event.at)), el("span", { class: "glyph", "aria-hidden": "true" }, event.glyph), el("span", {}, event.text));
    item.dataset.state = event.state;
    return item;
  }, () => {});
  if (!happened.length) at("events").replaceChildren(el("li", { class: "note" }, "nothing since the page was opened"));
}

function showWrong(status, remedies) {
  const box = at("wrong");
  box.hidden = remedies.length === 0;
  box.dataset.state = stateOf(status.health);
  keep(box.firstElementChild, remedies, (remedy) => remedy.wrong, () => {
    const copy = el("button", { type: "button" }, "copy");
    const item = el("li", {}, el("span"), el("span", { class: "verb" }, el("code"), copy));
    copy.addEventListener("click", () => navigator.clipboard?.writeText(item.querySelector("code").textContent).then(() => {
      copy.textContent = "copied";
      setTimeout(() => (copy.textContent = "copy"), 1500);
    }));
    return item;
  }, (item, remedy) => {
    item.firstChild.textContent = remedy.wrong;
    item.lastChild.hidden = !remedy.verb;
    item.querySelector("code").textContent = remedy.verb ?? "";
  });
}

function showFigures(status, { writes, reads, p50, p99, hold }) {
  const whole = (of) => status.nodes.reduce((sum, node) => sum + (node.up ? of(node) : 0), 0);
  const data = status.partitions.filter((partition) => partition.partition !== "p0");
  const keys = data.reduce((sum, partition) => sum + partition.keys, 0);
  const split = (text) => /^([\d.,–]+)\s?(.*)$/.exec(text)?.slice(1) ?? [text, ""];
  const spare = status.tolerated_failures;
  const rows = [
    ["writes", writes === null ? "–" : `${rate(writes)} /s`],
    ["reads", reads === null ? "–" : `${rate(reads)} /s`],
    ["latency p50", ms(p50)],
    ["latency p99", ms(p99)],
    ["replies held p99", ms(hold)],
    ["queries in flight", number(status.tickets_in_flight)],
    ["keys", rate(keys)],
    ["memory, all nodes", size(whole((node) => node.memory_bytes))],
    ["nodes that may fail", spare < 0 ? "no quorum" : number(spare)],
  ];
  keep(at("figures"), rows, ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span"), el("small"))), (item, [, text]) => {
    const [value, unit] = split(text);
    item.lastChild.firstChild.textContent = value;
    item.lastChild.lastChild.textContent = unit ? ` ${unit}` : "";
  });
}

// A table: its head once, a row for each item, cells as texts or as something that draws itself.
function table(id, head, items, keyOf, cells, stateOf) {
  const holder = at(id);
  if (!holder.tHead) {
    const columns = head.map(([name, kind]) => el("th", { scope: "col", ...(kind ? { class: kind } : {}) }, name));
    holder.append(el("thead", {}, el("tr", {}, ...columns)), el("tbody"));
  }
  keep(holder.tBodies[0], items, keyOf, () => el("tr", {}, ...head.map(([, kind]) => el("td", kind ? { class: kind } : {}))), (row, item) => {
    row.dataset.state = stateOf?.(item) ?? "";
    cells(item).forEach((cell, at) => {
      if (typeof cell === "function") cell(row.cells[at]);
      else if (row.cells[at].textContent !== cell) row.cells[at].textContent = cell;
    });
  });
}

function showNodes(status) {
  const head = [["node", "text"], ["state", "text"], ["leads"], ["replicas"], ["memory"], ["log"], ["disk free"], ["flush p99"], ["clients"], ["up for"], ["version"], ["clients reach it at", "text"]];
  if (demo) head.push(["", "do"]);
  const leads = (node) => status.partitions.filter((partition) => partition.leader === node).map((partition) => partition.partition);
  const holds = (node) => status.partitions.filter((partition) => partition.replicas.some((replica) => replica.node === node)).length;
  const state = (node) => (!node.up ? "bad" : node.memory_full || node.disk_full ? "warn" : "good");
  const words = (node) => (!node.up ? "no answer" : node.memory_full ? "memory full" : node.disk_full ? "disk full" : "up");
  const few = (names) => (names.length > 5 ? `${names.slice(0, 4).join(" ")} +${names.length - 4}` : names.join(" ") || "–");
  table("nodes", head, status.nodes, (node) => node.node, (node) => {
    const told = (text) => (node.up ? text : "–");
    const cells = [
      (cell) => {
        if (!cell.firstChild) cell.append(el("span", { class: "glyph", "aria-hidden": "true" }, "●"), el("b"));
        cell.firstChild.style.color = hue(node.node);
        cell.lastChild.textContent = node.name && node.name !== node.node ? `${node.node} ${node.name}` : node.node;
      },
      (cell) => {
        if (!cell.firstChild) cell.append(el("span", { class: "state" }));
        cell.firstChild.textContent = `${{ good: "●", warn: "▲", bad: "✕" }[state(node)]} ${words(node)}`;
      },
      few(leads(node.node)), number(holds(node.node)), told(size(node.memory_bytes)), told(size(node.log_bytes)), told(size(node.disk_free_bytes)),
      told(ms(node.flush_us_p99 / 1000)), told(number(node.connections)), told(lasts(node.uptime_ms)), told(node.version), node.address,
    ];
    if (demo) cells.push((cell) => demo.buttons(cell, node.node));
    return cells;
  }, state);
}

const TUNING_MAX = 12;
const NAMES = { Cpu: "the leader's thread", Network: "the way to a quorum", Disk: "the log's device" };

function showTuning(status, tuning) {
  const head = [["group", "text"], ["leader", "text"], ["batch: at most"], ["measured"], ["window: at most"], ["predicted"], ["measured"], ["commands: predicted"], ["measured"], ["", "text"], ["then busy", "text"], ["ahead"], ["undone"]];
  const data = tuning.groups.filter((group) => group.partition !== "p0");
  const busy = [...data].sort((a, b) => (b.account?.measured_throughput ?? -1) - (a.account?.measured_throughput ?? -1));
  const all = data.length > TUNING_MAX ? busy.slice(0, TUNING_MAX) : data;
  table("tuning", head, all, (group) => group.partition, (group) => {
    const { account, in_force: force } = group;
    const own = groups.get(group.leader)?.[group.partition];
    const told = (of) => (account ? of(account) : "–");
    const [predicted, measured] = [account?.predicted_throughput ?? 0, account?.measured_throughput ?? 0];
    const most = Math.max(predicted, measured, 1);
    return [
      group.partition, group.leader, size(force.batch_bytes_max), told((account) => rate(account.batch_commands)),
      number(force.window), told((account) => account.predicted_window.toFixed(1)), told((account) => account.measured_window.toFixed(1)),
      told((account) => `${rate(account.predicted_throughput)}/s`), told((account) => `${rate(account.measured_throughput)}/s`),
      (cell) => {
        if (!cell.firstChild) cell.append(el("span", { class: "meter", role: "img" }, el("i"), el("b")));
        cell.firstChild.hidden = !account;
        cell.firstChild.setAttribute("aria-label", `measured ${rate(measured)}/s, predicted ${rate(predicted)}/s`);
        cell.firstChild.firstChild.style.width = `${(measured / most) * 100}%`;
        cell.firstChild.lastChild.style.left = `${(predicted / most) * 100}%`;
      },
      told((account) => NAMES[account.bottleneck]), own ? number(own.speculative_instances) : "–", own ? number(own.undone_commands) : "–",
    ];
  });
  const busiest = busy[0]?.account ? busy[0] : null;
  const off = (data.length > all.length ? `The ${all.length} busiest of ${data.length} groups; all: coppice tuning. ` : "") +
    (tuning.on ? "" : "Tuning is off: batches and windows are as set. ");
  at("reason").textContent = off + (busiest
    ? `${busiest.partition} decides ${rate(busiest.account.measured_throughput)} commands/s. In such batches and this window it comes to ` +
      `${rate(busiest.account.predicted_throughput)} at most: then ${NAMES[busiest.account.bottleneck]} is busy all the time. ` +
      `A quorum is ${busiest.account.round_trip_ms.toFixed(2)} ms away, a flush takes ${busiest.account.flush_ms.toFixed(2)} ms.`
    : "No group has done enough yet to be measured.");
}

// --- Where it comes from --------------------------------------------------------------------------------------------

const LATE_MS = 2000; // an event comes each second
let heard = null; // when the newest event came, and from whom

// How the page is fed; what it shows is dim while it may be old.
function feed(state, text) {
  page.dataset.feed = state;
  at("feed").dataset.state = state;
  if (at("feed").textContent !== text) at("feed").textContent = text;
}
setInterval(() => {
  const silence = heard ? Date.now() - heard.at : 0;
  if (silence > LATE_MS) feed("lost", `■ ${heard.from} says nothing for ${Math.round(silence / 1000)} s`);
}, 500);

const nameOf = (base) => {
  const address = base === "" ? location.host : base.replace("http://", "");
  const known = Object.entries(newest?.nodes ?? {}).find(([, node]) => node.admin === address);
  return known ? known[0] : address;
};
const bases = (addresses) => addresses.filter(Boolean).map((address) => `http://${address}`).filter((base) => base !== location.origin);
const nodes = bases((page.dataset.nodes ?? "").split(" "));
const stream = new Stream(isDemo ? nodes : ["", ...nodes], {
  event(event, base) {
    // Another program may have been given the port of a node that is gone.
    if (newest?.status.cluster && event.status && event.status.cluster !== newest.status.cluster) return false;
    at("token").hidden = true;
    take(event);
    if (event.status) stream.know(bases(Object.values(event.nodes).map((node) => node.admin)));
    heard = { at: Date.now(), from: event.status?.answered_by ?? nameOf(base) };
    feed("live", `live from ${heard.from}`);
    return true;
  },
  lost(base, next, why) {
    heard = null;
    feed("lost", `■ ${nameOf(base)}: ${why}; asking ${nameOf(next)}`);
    if (!newest) say("warn", "connecting", "no node has answered yet");
  },
  denied(text) {
    at("token").hidden = false;
    at("denied").textContent = stream.token ? text : "";
    feed("lost", "■ a token is needed");
    if (!newest) say("warn", "a token is needed", "");
    at("token").elements.token.focus();
  },
});
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  stream.use(event.target.elements.token.value.trim());
});

// --- Colours --------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "dark", "light"];
function paint(theme) {
  if (theme === "auto") delete page.dataset.theme;
  else page.dataset.theme = theme;
  at("theme").textContent = theme;
  at("theme").setAttribute("aria-label", `Colours: ${theme}`);
  recolor();
}
at("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(at("theme").textContent) + 1) % THEMES.length];
  localStorage.setItem("theme", theme);
  paint(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);
paint(THEMES.find((theme) => theme === localStorage.getItem("theme")) ?? "auto");

demo?.start(() => {
  if (newest) showNodes(newest.status);
});
stream.run();
