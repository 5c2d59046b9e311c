"""Operations a second of one client at a demo, keys and values of 8 bytes: ``python measure.py``, COPPICE_BIN set.

Each figure is the median of three runs of three seconds.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Callable

from cluster import Demo
from coppice import AsyncClient, Client, Operation

RUNS = 3
SECONDS = 3.0
TASKS = 1000
KEYS = 10_000
VALUE = b"8 bytes."


def name(number: int) -> bytes:
    return b"%08d" % number


def key() -> bytes:
    return name(random.randrange(KEYS))


def blocking(call: Callable[[], object]) -> float:
    calls, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        call()
        calls += 1
    return calls / SECONDS


async def tasks(client: AsyncClient, puts: bool) -> float:
    end = time.monotonic() + SECONDS

    async def one() -> int:
        calls = 0
        while time.monotonic() < end:
            await (client.put(key(), VALUE) if puts else client.get(key()))
            calls += 1
        return calls

    return sum(await asyncio.gather(*(one() for _ in range(TASKS)))) / SECONDS


async def concurrent(endpoints: str, puts: bool) -> float:
    async with AsyncClient(endpoints) as client:
        return statistics.median([await tasks(client, puts) for _ in range(RUNS)])


def main() -> None:
    with Demo() as demo:
        endpoints = ",".join(demo.endpoints)
        with Client(endpoints) as client:
            client.execute([Operation.put(name(number), VALUE) for number in range(KEYS)])
            for what, call in (("put", lambda: client.put(key(), VALUE)), ("get", lambda: client.get(key()))):
                print(f"blocking loop, {what}: {statistics.median(blocking(call) for _ in range(RUNS)):,.0f}/s")
        for what in ("put", "get"):
            rate = asyncio.run(concurrent(endpoints, what == "put"))
            print(f"asyncio, {TASKS} tasks, {what}: {rate:,.0f}/s")


if __name__ == "__main__":
    main()
