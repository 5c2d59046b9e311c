// ioredis, unmodified: it waits for INFO, pipelines, transactions, streams of keys, and its cluster client.
import assert from "node:assert/strict";
import { Cluster, Redis } from "ioredis";

const [host, port] = process.argv.slice(2);
const redis = new Redis({ host, port: Number(port), connectionName: "matrix" });
assert.equal(await redis.set("io:a", "1"), "OK");
assert.equal(await redis.incr("io:a"), 2);
assert.equal(await redis.get("io:none"), null);
const answers = await redis.pipeline().set("io:b", "1").get("io:b").lpush("io:c", "x").exec();
assert.deepEqual(answers.slice(0, 2), [[null, "OK"], [null, "1"]]);
assert.match(answers[2][0].message, /LPUSH is not supported/);
assert.deepEqual(await redis.multi().set("io:b", "2").incr("io:b").exec(), [[null, "OK"], [null, 3]]);
assert.ok(Buffer.from([0, 255, 13, 10]).equals((await redis.set("io:bin", Buffer.from([0, 255, 13, 10])), await redis.getBuffer("io:bin"))));
await redis.mset(Object.fromEntries(Array.from({ length: 50 }, (_, n) => [`io:s:${n}`, "x"])));
let found = 0;
for await (const keys of redis.scanStream({ match: "io:s:*", count: 7 })) found += keys.length;
assert.equal(found, 50);
await redis.setex("io:ttl", 100, "x");
assert.ok((await redis.ttl("io:ttl")) > 90);
redis.disconnect();

const cluster = new Cluster([{ host, port: Number(port) }]);
assert.equal(await cluster.set("io:cluster", "1"), "OK");
assert.equal(await cluster.get("io:cluster"), "1");
cluster.disconnect();
console.log("ioredis ok");
