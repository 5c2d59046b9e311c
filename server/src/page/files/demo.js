// The buttons of a demo: orders to the demo that served the page, which are what one would type at its prompt.

import { el } from "./parts.js";

const KIND = "application/x-coppice-order";
const said = document.getElementById("said");
const load = document.getElementById("load");
const heal = document.getElementById("heal");

const ENDED = "the demo has ended: its nodes are gone with it";

let next;
let view = { nodes: [], faults: [], load: false, running: null };
let waiting = null; // the order that was given and has not ended: its line and number
let redraw = () => {};

function say(text, bad) {
  said.textContent = text;
  said.dataset.state = bad ? "bad" : "";
}

async function order(line) {
  waiting = { line, number: Infinity };
  say(`${line} ..`);
  show();
  try {
    const answer = await fetch("/ui/demo", { method: "POST", headers: { "Content-Type": KIND }, body: line });
    const told = await answer.json();
    if (answer.ok) waiting.number = told.number;
    else {
      waiting = null;
      say(told.error, true);
    }
  } catch {
    waiting = null;
    say(ENDED, true);
  }
  await look();
}

// Looks often while something is carried out.
async function look() {
  clearTimeout(next);
  if (!document.hidden) {
    try {
      view = await (await fetch("/ui/demo", { cache: "no-store" })).json();
      const { outcome } = view;
      if (waiting && outcome?.number >= waiting.number) {
        waiting = null;
        say(outcome.said?.join("  ") ?? outcome.error, !outcome.said);
      }
    } catch {
      waiting = null;
      say(ENDED, true);
    }
    show();
  }
  next = setTimeout(look, waiting || view.running ? 200 : 1000);
}

function show() {
  const busy = Boolean(waiting ?? view.running);
  load.textContent = view.load ? "stop load" : "start load";
  load.setAttribute("aria-pressed", view.load);
  load.disabled = busy;
  heal.disabled = busy || view.faults.length === 0;
  heal.textContent = view.faults.length ? `heal: ${view.faults.join(", ")}` : "heal";
  if (!waiting && view.running) say(`${view.running} .. (at the prompt)`);
  redraw();
}

// The buttons of a node.
export function buttons(cell, node) {
  const state = view.nodes.find((each) => each.node === node)?.state;
  if (!state) return cell.replaceChildren();
  const digits = node.slice(1);
  const others = view.nodes.map((each) => each.node.slice(1)).filter((other) => other !== digits);
  const isCut = view.faults.some((fault) => fault === `cut ${digits}|${others.join(",")}`);
  const wanted = state === "down" ? [["restart", `restart ${digits}`]]
    : state === "paused" ? [["resume", `resume ${digits}`], ["kill", `kill ${digits}`]]
    : [["pause", `pause ${digits}`], ...(isCut || !others.length ? [] : [["cut off", `cut ${digits}|${others.join(",")}`]]), ["kill", `kill ${digits}`]];
  const signature = wanted.map(([, line]) => line).join();
  if (cell.dataset.has !== signature) {
    cell.dataset.has = signature;
    cell.replaceChildren(...wanted.map(([name, line]) => {
      const button = el("button", { type: "button", "aria-label": `${name} ${node}` }, name);
      button.dataset.order = line;
      button.addEventListener("click", () => order(line));
      return button;
    }));
  }
  for (const button of cell.children) button.disabled = Boolean(waiting ?? view.running);
}

export function start(changed) {
  redraw = changed;
  document.getElementById("demo").hidden = false;
  load.addEventListener("click", () => order(view.load ? "load stop" : "load"));
  heal.addEventListener("click", () => order("heal"));
  look();
}
