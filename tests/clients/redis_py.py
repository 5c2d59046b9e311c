"""redis-py, unmodified: strings, pipelines, transactions, expiry, scans, RESP3, asyncio, and its cluster client."""
import asyncio
import sys
import time

import redis
import redis.asyncio

host, port = sys.argv[1], int(sys.argv[2])


def strings(r):
    r.delete("py:a")
    assert r.set("py:a", b"\x00\xff\r\n") is True
    assert r.get("py:a") == b"\x00\xff\r\n"
    assert r.get("py:none") is None
    assert r.set("py:a", "1", nx=True) is None and r.set("py:a", "1", xx=True, get=True) == b"\x00\xff\r\n"
    assert r.incr("py:a", 41) == 42 and r.incrbyfloat("py:a", 0.5) == 42.5
    assert r.append("py:a", "!") == 5 and r.getrange("py:a", 0, 1) == b"42" and r.strlen("py:a") == 5
    assert r.mset({"py:b": "1", "py:c": "2"}) and r.mget("py:b", "py:c", "py:none") == [b"1", b"2", None]
    assert r.exists("py:b", "py:c") == 2 and r.delete("py:b", "py:c") == 2
    assert r.type("py:a") in (b"string", "string")
    assert r.getdel("py:a") == b"42.5!"
    try:
        r.lpush("py:list", "a")
        raise AssertionError("a list")
    except redis.ResponseError as error:
        assert "LPUSH is not supported" in str(error)


def transactions(r):
    with r.pipeline() as pipe:
        assert pipe.set("py:a", 1).incr("py:a").get("py:a").execute() == [True, 2, b"2"]
    with r.pipeline(transaction=False) as pipe:
        for n in range(200):
            pipe.set(f"py:{n:03}", n)
        assert all(pipe.execute())
    with r.pipeline() as pipe:
        pipe.watch("py:a")
        r.set("py:a", 7)
        pipe.multi()
        pipe.set("py:a", 8)
        try:
            pipe.execute()
            raise AssertionError("watched in vain")
        except redis.WatchError:
            pass
    assert r.transaction(lambda pipe: (pipe.multi(), pipe.incr("py:a")), "py:a") == [8]
    with r.pipeline() as pipe:
        try:
            pipe.set("a", 1).set("zz", 1).execute()
            raise AssertionError("two partitions")
        except redis.ResponseError as error:
            assert "CROSSPARTITION" in str(error)


def keys(r):
    found = sorted(r.scan_iter("py:[0-9]*", count=17))
    assert found == [b"py:%03d" % n for n in range(200)], len(found)
    assert r.keys("py:00?") == [b"py:%03d" % n for n in range(10)]
    assert r.dbsize() >= 200 and r.randomkey()
    counted = r.execute_command("RANGECOUNT", "[py:000", "(py:100")
    assert counted == 100
    r.delete(*found)


def expiry(r):
    r.set("py:ttl", "x", ex=100)
    assert 90 < r.ttl("py:ttl") <= 100 and r.persist("py:ttl") and r.ttl("py:ttl") == -1
    assert r.expire("py:ttl", 50) and r.pttl("py:ttl") > 40_000
    assert r.set("py:ttl", "y", keepttl=True) and r.ttl("py:ttl") > 40
    assert r.set("py:ttl", "z") and r.ttl("py:ttl") == -1
    r.psetex("py:ttl", 200, "x")
    deadline = time.time() + 20
    while r.exists("py:ttl"):
        assert time.time() < deadline, "it does not expire"
        time.sleep(0.05)
    # A lock is taken with SET NX PX; its release is a script, which is refused.
    lock = r.lock("py:lock", timeout=5)
    assert lock.acquire() and not r.lock("py:lock", timeout=5).acquire(blocking=False)
    r.delete("py:lock")


async def asynchronously():
    async with redis.asyncio.Redis(host=host, port=port) as r:
        await asyncio.gather(*(r.set(f"py:async:{n}", n) for n in range(100)))
        assert await asyncio.gather(*(r.get(f"py:async:{n}") for n in range(100))) == [b"%d" % n for n in range(100)]


for protocol in (2, 3):
    r = redis.Redis(host=host, port=port, protocol=protocol, client_name="matrix")
    assert r.ping() and r.client_getname() in (b"matrix", "matrix") and r.info()["loading"] == 0
    strings(r)
    transactions(r)
    keys(r)
    expiry(r)
asyncio.run(asynchronously())
cluster = redis.cluster.RedisCluster(host=host, port=port)
assert cluster.set("py:cluster", 1) and cluster.get("py:cluster") == b"1"
print("redis-py", redis.__version__, "ok")
