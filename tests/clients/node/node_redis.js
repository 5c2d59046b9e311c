// node-redis, unmodified: strings, transactions, expiry, scans, RESP3, its cluster client, and sessions of
// connect-redis.
import assert from "node:assert/strict";
import { RedisStore } from "connect-redis";
import { createClient, createCluster } from "redis";

const [host, port] = process.argv.slice(2);
const url = `redis://${host}:${port}`;

for (const RESP of [2, 3]) {
  const client = createClient({ url, RESP, name: "matrix" });
  client.on("error", (error) => { throw error; });
  await client.connect();
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.set("js:a", "1"), "OK");
  assert.equal(await client.get("js:none"), null);
  assert.equal(await client.incrBy("js:a", 41), 42);
  assert.deepEqual(await client.mGet(["js:a", "js:none"]), ["42", null]);
  // A burst is a pipeline.
  const burst = Array.from({ length: 500 }, (_, n) => client.set(`js:burst:${n % 7}`, String(n)));
  assert.ok((await Promise.all(burst)).every((answer) => answer === "OK"));
  assert.deepEqual(await client.multi().set("js:b", "2").get("js:b").exec(), ["OK", "2"]);
  await client.watch("js:b");
  await client.set("js:b", "3");
  await assert.rejects(client.multi().set("js:b", "4").exec(), /watch/i);
  await client.set("js:ttl", "x", { expiration: { type: "EX", value: 100 } });
  assert.ok((await client.ttl("js:ttl")) > 90);
  const found = [];
  for await (const keys of client.scanIterator({ MATCH: "js:burst:*", COUNT: 3 })) found.push(...keys);
  assert.equal(found.length, 7);
  await assert.rejects(client.hSet("js:h", "a", "1"), /HSET is not supported/);
  client.destroy();
}

const cluster = createCluster({ rootNodes: [{ url }] });
await cluster.connect();
assert.equal(await cluster.set("js:cluster", "1"), "OK");
assert.equal(await cluster.get("js:cluster"), "1");
cluster.destroy();

const client = await createClient({ url }).connect();
const store = new RedisStore({ client, prefix: "js:session:", ttl: 60 });
await store.set("id", { cookie: { originalMaxAge: 60_000 }, user: "somebody" });
assert.equal((await store.get("id")).user, "somebody");
assert.equal(await store.length(), 1);
await store.touch("id", { cookie: { originalMaxAge: 60_000 } });
await store.set("short", { cookie: { expires: new Date(Date.now() + 1_100) }, user: "soon gone" });
for (const until = Date.now() + 20_000; await store.get("short"); ) {
  assert.ok(Date.now() < until, "the session does not expire");
  await new Promise((resolve) => setTimeout(resolve, 100));
}
await store.destroy("id");
assert.ok(!(await store.get("id")));
client.destroy();
console.log("node-redis and connect-redis ok");
