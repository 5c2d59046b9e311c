"""The asynchronous client."""

from __future__ import annotations

import asyncio
import itertools
import socket
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type, cast

from . import _common
from ._common import Bytes, Command, Endpoints, Path
from ._coppice import Core, Operation, Scan
from ._types import Cas, Closed, ManyIf


class _Calls:
    """Calls that wait in an event loop. A thread of the client's own executes them, and a socket wakes the loop."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.tokens = itertools.count()
        self.waiting: Dict[int, asyncio.Future[Any]] = {}
        self.loop: Optional[asyncio.AbstractEventLoop] = None
        self.socket: Optional[socket.socket] = None
        self.closed = False

    def bind(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self.loop is loop:
            return loop
        if self.closed:
            raise Closed("the client is closed")
        if self.loop is not None:
            raise RuntimeError("an AsyncClient belongs to the event loop that used it first: make one for each loop")
        self.loop = loop
        self.socket = socket.socket(fileno=self.core.take_socket())
        self.socket.setblocking(False)
        loop.add_reader(self.socket, self.complete)
        return loop

    def complete(self) -> None:
        """What has ended goes to those who wait for it."""
        if self.socket is not None:
            try:
                self.socket.recv(4096)
            except BlockingIOError:
                pass
        for token, good, result in self.core.completed():
            future = self.waiting.pop(token, None)
            if future is None or future.done():
                continue
            if good:
                future.set_result(result)
            else:
                future.set_exception(result)

    async def call(self, begin: Callable[..., Any], *arguments: Any) -> Any:
        future = self.bind().create_future()
        token = next(self.tokens)
        begin(token, *arguments)
        self.waiting[token] = future
        try:
            return await future
        finally:
            self.waiting.pop(token, None)

    def close(self) -> None:
        self.closed = True
        if self.socket is not None and self.loop is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(self.socket)
            self.socket.close()
            self.socket = None
        self.core.close()
        waiting, self.waiting = self.waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Closed("the client is closed; a write may have been executed"))


class AsyncClient:
    """A connection to a cluster, for asyncio: the verbs of :class:`coppice.Client`, awaited.

    All tasks of one event loop may share it: what they ask at the same time travels together, so thousands of calls may
    be under way.

    The arguments are those of :class:`coppice.Client`. A task that is cancelled leaves its call: a write may then have
    been executed.

    >>> async with AsyncClient("127.0.0.1:7400") as client:
    ...     await client.put("apple", "red")
    """

    def __init__(
        self,
        endpoints: Endpoints = None,
        *,
        timeout: float = 5.0,
        token: Optional[str] = None,
        token_file: Path = None,
        tls_ca: Path = None,
        tls_cert: Path = None,
        tls_key: Path = None,
        reads: str = "leader",
    ) -> None:
        self._core: Core = _common.core(
            True, endpoints, timeout, token, token_file, tls_ca, tls_cert, tls_key, reads
        )
        self._calls = _Calls(self._core)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the client: calls that wait end with Closed. A write among them may have been executed."""
        self._calls.close()

    def with_timeout(self, seconds: float) -> AsyncClient:
        """The same client with another timeout for its calls. Closing either closes both."""
        other = AsyncClient.__new__(AsyncClient)
        other._core = self._core.with_timeout(seconds)
        other._calls = self._calls
        return other

    async def connect(self) -> None:
        """Finds the cluster, which the first call does too."""
        await self._calls.call(self._core.connect)

    async def get(self, key: Bytes, *, reads: Optional[str] = None) -> Optional[bytes]:
        """The value of a key; None: it is absent. ``reads`` as in the constructor."""
        return cast("Optional[bytes]", await self._calls.call(self._core.get, key, reads))

    async def get_many(self, keys: Iterable[Bytes]) -> List[Optional[bytes]]:
        """The values of keys as of one moment, in their order, whatever partitions they lie in. At most 256 keys.
        Fails with Busy if they change too often to be read.
        """
        return cast("List[Optional[bytes]]", await self._calls.call(self._core.get_many, list(keys)))

    async def put(self, key: Bytes, value: Bytes, *, ttl: Optional[float] = None) -> Optional[bytes]:
        """Writes, whether or not the key was there; the previous value. ``ttl``: the key expires after so many seconds,
        and soon after that it is gone; without it the key stays.
        """
        return cast("Optional[bytes]", await self._calls.call(self._core.one, Operation.put(key, value, ttl=ttl)))

    async def expire(self, key: Bytes, ttl: float) -> bool:
        """Lets a key expire after so many seconds, whatever it did before; whether it is there. A put ends that, an
        update keeps it.
        """
        return cast(bool, await self._calls.call(self._core.one, Operation.expire(key, ttl)))

    async def persist(self, key: Bytes) -> bool:
        """Lets a key stay that would expire; whether it would have."""
        return cast(bool, await self._calls.call(self._core.one, Operation.persist(key)))

    async def ttl(self, key: Bytes) -> Optional[float]:
        """Seconds until a key expires; None: it is absent, or does not expire."""
        return cast("Optional[float]", await self._calls.call(self._core.ttl, key))

    async def insert(self, key: Bytes, value: Bytes) -> Optional[bytes]:
        """Writes only if the key is absent. None: written; else the value that was there and stays."""
        return cast("Optional[bytes]", await self._calls.call(self._core.one, Operation.insert(key, value)))

    async def delete(self, key: Bytes) -> Optional[bytes]:
        """Removes a key; the removed value."""
        return cast("Optional[bytes]", await self._calls.call(self._core.one, Operation.delete(key)))

    async def delete_if(self, key: Bytes, expected: Bytes) -> bool:
        """Removes a key only if it holds exactly ``expected``; whether it did."""
        return cast(bool, await self._calls.call(self._core.one, Operation.delete_if(key, expected)))

    async def cas(self, key: Bytes, expected: Bytes, value: Bytes) -> Cas:
        """Writes only if the key holds exactly ``expected``. The answer is true if it did."""
        return cast(Cas, await self._calls.call(self._core.one, Operation.cas(key, expected, value)))

    async def increment(self, key: Bytes, by: int = 1) -> int:
        """Adds to a decimal integer of 64 bits; the sum. An absent key counts as 0. NotDone: the value is no integer,
        or the sum is out of range.
        """
        return cast(int, await self._calls.call(self._core.one, Operation.increment(key, by)))

    async def append(self, key: Bytes, value: Bytes) -> int:
        """Appends to a value; its new length in bytes. An absent key counts as empty."""
        return cast(int, await self._calls.call(self._core.one, Operation.append(key, value)))

    async def rename(self, key: Bytes, to: Bytes) -> bool:
        """Gives the value of a key to another of the same partition, over what that holds; whether there was one."""
        return cast(bool, await self._calls.call(self._core.one, Operation.rename(key, to)))

    async def many(self, operations: Iterable[Operation]) -> Optional[List[Any]]:
        """Executes operations of one partition together, at one moment. Their results, in order; an operation that is
        not done has its NotDone there. None: executed, but the results are more than an answer can hold.
        """
        return cast("Optional[List[Any]]", await self._calls.call(self._core.many, list(operations)))

    async def many_if(self, guards: Iterable[Operation], operations: Iterable[Operation]) -> ManyIf:
        """Executes operations of one partition together if all guards hold (``Operation.check_absent`` and others), and
        none of them else.
        """
        return _common.many_if_of(await self._calls.call(self._core.many_if, list(guards), list(operations)))

    async def execute(self, operations: Iterable[Operation]) -> List[Any]:
        """Executes operations of any partitions, each for itself and in any order. A result or an exception each, in
        the order given: look at each.
        """
        return cast("List[Any]", await self._calls.call(self._core.execute, list(operations)))

    async def resume(self, resume_token: str, command: Command) -> Any:
        """Finds out what became of a write whose outcome is unknown, and executes it if it was not: the operation, or
        those of ``many``, as it was given. It is executed once at most, however often it is resumed.
        """
        operations, alone = _common.resumed(command)
        return await self._calls.call(self._core.resume, resume_token, operations, alone)

    async def count(
        self,
        low: Optional[Bytes] = None,
        high: Optional[Bytes] = None,
        *,
        prefix: Optional[Bytes] = None,
        reads: Optional[str] = None,
    ) -> int:
        """How many keys there are from ``low`` to before ``high``, or with a prefix, at one moment."""
        return cast(int, await self._calls.call(self._core.count, _common.bounds(low, high, prefix), reads))

    async def delete_range(
        self,
        low: Optional[Bytes] = None,
        high: Optional[Bytes] = None,
        *,
        prefix: Optional[Bytes] = None,
        limit: Optional[int] = None,
    ) -> int:
        """Removes the keys from ``low`` to before ``high``, or with a prefix; how many. Up to 1000 keys of a partition
        go at one moment, the whole range does not: repeat it after an error.
        """
        most = _common.pairs_max(limit)
        bounds = _common.bounds_to_delete(low, high, prefix)
        if most is None:
            return 0
        return cast(int, await self._calls.call(self._core.delete_range, bounds, most))

    def range(
        self,
        low: Optional[Bytes] = None,
        high: Optional[Bytes] = None,
        *,
        prefix: Optional[Bytes] = None,
        reverse: bool = False,
        limit: Optional[int] = None,
        keys_only: bool = False,
        reads: Optional[str] = None,
    ) -> AsyncPairs:
        """The pairs from ``low`` to before ``high``, or with a prefix, in order: the state of one moment, read while it
        is iterated, in bounded memory. reverse: from the high end down. limit: so many pairs at most. keys_only: values
        are left empty.

        >>> async for key, value in client.range(prefix="fruit/"): ...
        """
        bounds = _common.bounds(low, high, prefix)
        most = _common.pairs_max(limit)
        return AsyncPairs(self._core, self._calls, (bounds, reverse, most or 0, keys_only, reads), most is None)


class AsyncPairs:
    """The pairs of a range, read while they are iterated. ``async with`` ends the reading early."""

    def __init__(self, core: Core, calls: _Calls, arguments: Tuple[Any, ...], over: bool) -> None:
        self._core, self._calls, self._arguments = core, calls, arguments
        self._scan: Optional[Scan] = None
        self._pairs: Sequence[Tuple[bytes, bytes]] = ()
        self._at = 0
        self._over = over

    def __aiter__(self) -> AsyncPairs:
        return self

    async def __anext__(self) -> Tuple[bytes, bytes]:
        if self._at == len(self._pairs):
            await self._fetch()
            if self._over:
                raise StopAsyncIteration
        pair = self._pairs[self._at]
        self._at += 1
        return pair

    async def _fetch(self) -> None:
        self._pairs, self._at = (), 0
        if self._over:
            return
        try:
            if self._scan is None:
                self._scan = cast(Scan, await self._calls.call(self._core.range, *self._arguments))
            self._pairs = await self._calls.call(self._core.next_pairs, self._scan)
        except BaseException:
            self.close()
            raise
        if not self._pairs:
            self.close()

    async def __aenter__(self) -> AsyncPairs:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the reading."""
        self._over, self._pairs, self._at = True, (), 0
        if self._scan is not None:
            self._scan.close()
            self._scan = None
