// The page in a real browser, fed by a real demo: it shows what the verbs print, it is live, its buttons break and mend,
// and it outlives the node that serves it. Any error on the console, and any request off this machine, fails it.
//
//   node tests/ui/page.mjs PROGRAM DIRECTORY     PROGRAM: coppice, beside coppice-load; screenshots go to DIRECTORY

import { execFileSync, spawn } from "node:child_process";
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";

const [, , program, directory] = process.argv;
// Far beyond what anything here takes: a machine that is busy fails nothing.
const DEADLINE_MS = 60_000;
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

// --- The demo -------------------------------------------------------------------------------------------------------

async function startDemo() {
  const temporary = fs.mkdtempSync(path.join(os.tmpdir(), "coppice-ui-"));
  const child = spawn(program, ["demo", "--no-prompt"], { env: { ...process.env, TMPDIR: temporary }, stdio: ["ignore", "pipe", "inherit"] });
  const demo = { child, temporary, nodes: new Map(), said: "", ended: new Promise((done) => child.on("exit", done)) };
  child.stdout.setEncoding("utf8").on("data", (text) => (demo.said += text));
  await until("the demo is healthy", () => /^healthy/m.test(demo.said));
  demo.page = /page (http:\S+)/.exec(demo.said)[1].replace(/;$/, "");
  for (const [, node, client, admin] of demo.said.matchAll(/^ {2}(n\d+) {2}client (\S+) .*admin :(\d+)/gm)) {
    demo.nodes.set(node, { client, admin: `127.0.0.1:${admin}` });
  }
  return demo;
}

const verb = (demo, ...words) => {
  const endpoints = [...demo.nodes.values()].map((node) => node.client).join();
  return JSON.parse(execFileSync(program, ["--endpoints", endpoints, "-o", "json", ...words], { encoding: "utf8" }));
};

async function until(what, reached) {
  const begun = Date.now();
  for (;;) {
    if (await reached()) return Date.now() - begun;
    assert(Date.now() - begun < DEADLINE_MS, `not within ${DEADLINE_MS / 1000} s: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

// --- The browser ----------------------------------------------------------------------------------------------------

const complaints = [];
// Nodes that are dead: the browser itself says on the console that they refuse.
const dead = new Set();

async function open(browser, url, options = {}) {
  const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "dark", ...options })).newPage();
  page.on("console", (message) => {
    const from = message.location().url ?? "";
    const refused = message.text().includes("net::ERR_") && [...dead].some((address) => from.startsWith(`http://${address}/ui/events`));
    if (["error", "warning"].includes(message.type()) && !refused) complaints.push(`${message.type()}: ${message.text()} (${from})`);
  });
  page.on("pageerror", (error) => complaints.push(`exception: ${error.stack}`));
  page.on("request", (request) => {
    const to = new URL(request.url());
    if (!["127.0.0.1", "localhost"].includes(to.hostname)) complaints.push(`a request off this machine: ${request.url()}`);
  });
  await page.goto(url);
  return page;
}

const text = (page, selector) => page.locator(selector).first().textContent();
const throughput = async (page) => {
  const label = await page.locator(".chart").first().getAttribute("aria-label", { timeout: DEADLINE_MS });
  return /writes ([^,]+)\/s/.exec(label ?? "")?.[1];
};
const press = async (page, order) => {
  await page.locator(`[data-order="${order}"]`).click({ timeout: DEADLINE_MS });
};
const says = (page, word) => until(`the page says ${word}`, async () => (await text(page, "#word")) === word);

// --- The test -------------------------------------------------------------------------------------------------------

async function test(demo, browser) {
  const page = await open(browser, demo.page);

  console.log("the segments are the partitions");
  const wanted = verb(demo, "status").partitions.filter((partition) => partition.partition !== "p0");
  await until("all segments are there", async () => (await page.locator(".segment").count()) === wanted.length);
  for (const [at, partition] of wanted.entries()) {
    const label = await page.locator(".segment").nth(at).getAttribute("aria-label");
    assert(label.startsWith(`${partition.partition}, keys ${partition.low}..${partition.high ?? ""}, leader ${partition.leader}`), label);
  }
  const listed = execFileSync(program, ["--endpoints", [...demo.nodes.values()].map((node) => node.client).join(), "-o", "table", "partition", "ls"], { encoding: "utf8" });
  for (const name of await page.locator(".segment b").allTextContents()) assert(listed.includes(name), `${name} in ${listed}`);

  console.log("by keyboard");
  await page.locator(".segment").first().focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.locator(":focus").getAttribute("data-partition"), wanted[1].partition);
  assert.match(await text(page, "#detail dt"), new RegExp(`^${wanted[1].partition} holds`));
  await page.keyboard.press("/");
  await page.keyboard.type("melon");
  assert.match(await text(page, "#found"), /^in p2, led by n\d$/);

  console.log("load is seen");
  await page.locator("#load").click();
  await until("writes are seen", async () => !["0", "–", undefined].includes(await throughput(page)));
  assert.equal((await text(page, "#load")).trim(), "stop load");

  console.log("what a split does is seen as it happens");
  verb(demo, "partition", "split", "--at", "c", "--yes");
  await until("a new segment", async () => (await page.locator(".segment").count()) === wanted.length + 1);

  console.log("a kill is seen");
  dead.add(demo.nodes.get("n1").admin);
  await press(page, "kill 1");
  console.log(`  degraded after ${await says(page, "degraded")} ms`);
  await until("the sentence and the verb", async () => (await page.locator("#wrong").textContent()).includes("coppice node replace n1"));
  await until("it is among what happened", async () => (await page.locator("#events").textContent()).includes("n1 does not answer"));
  assert.match(await text(page, "#sentence"), /until n1 is back/);

  console.log("without a majority, writes fall to nothing");
  dead.add(demo.nodes.get("n2").admin);
  await press(page, "kill 2");
  await says(page, "unavailable");
  await until("writes are at 0", async () => ["0", "–"].includes(await throughput(page)));
  await page.screenshot({ path: path.join(directory, "unavailable.png"), fullPage: true });

  console.log("restarted, it is healthy");
  await press(page, "restart 1");
  await press(page, "restart 2");
  await says(page, "healthy");
  dead.clear();
  await until("writes go on", async () => !["0", "–"].includes(await throughput(page)));
  await page.screenshot({ path: path.join(directory, "healthy.png"), fullPage: true });

  console.log("a node's own page has no buttons, and outlives the node");
  const { admin } = demo.nodes.get("n3");
  const own = await open(browser, `http://${admin}/ui`, { colorScheme: "light", viewport: { width: 390, height: 844 }, hasTouch: true });
  await says(own, "healthy");
  assert.equal(await own.locator("[data-order], #load:visible").count(), 0);
  const wide = await own.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
  assert(wide <= 0, `a phone shows the page without scrolling sideways: ${wide} px too wide`);
  await own.screenshot({ path: path.join(directory, "phone.png"), fullPage: true });
  dead.add(admin);
  await press(page, "kill 3");
  console.log(`  another node feeds it after ${await until("another node feeds it", async () => /^live from n[12]$/.test(await text(own, "#feed")))} ms`);
  await says(own, "degraded");
  await until("its charts go on", async () => !["0", "–"].includes(await throughput(own)));
  await press(page, "restart 3");
  await says(own, "healthy");

  console.log("dark and light differ, and nothing else orders");
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await ground();
  await page.emulateMedia({ colorScheme: "light" });
  assert.notEqual(await ground(), dark);
  const order = (headers) => fetch(new URL("/ui/demo", demo.page), { method: "POST", body: "kill 1", headers });
  const kind = "application/x-coppice-order";
  assert.equal((await order({ "Content-Type": kind })).status, 403);
  assert.equal((await order({ "Content-Type": kind, Origin: "http://example.com" })).status, 403);
  assert.equal((await order({ "Content-Type": "text/plain", Origin: new URL(demo.page).origin })).status, 403);
  const post = await fetch(`http://${demo.nodes.get("n1").admin}/ui/events`, { method: "POST" });
  assert.equal(post.status, 405);
  await page.locator("#load").click();
  await until("load ends", async () => (await text(page, "#load")).trim() === "start load");
}

fs.mkdirSync(directory, { recursive: true });
const demo = await startDemo();
// As root, Chromium runs without a sandbox only; it opens nothing but the page.
const options = { executablePath: BROWSERS.find((file) => fs.existsSync(file)), args: process.getuid() === 0 ? ["--no-sandbox"] : [] };
const browser = await chromium.launch(options);
let failed = null;
try {
  await test(demo, browser);
  assert.deepEqual(complaints, []);
} catch (error) {
  failed = error;
  console.log(demo.said);
  for (const [at, page] of browser.contexts().flatMap((context) => context.pages()).entries()) {
    await page.screenshot({ path: path.join(directory, `failed-${at}.png`), fullPage: true });
  }
} finally {
  await browser.close();
  demo.child.kill("SIGINT");
  await demo.ended;
  fs.rmSync(demo.temporary, { recursive: true, force: true });
}
if (failed) {
  console.error(failed.message, complaints);
  process.exit(1);
}
console.log("ok");
