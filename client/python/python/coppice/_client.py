"""The blocking client."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Tuple, Type, cast

from . import _common
from ._common import Bytes, Command, Endpoints, Path
from ._coppice import Core, Operation, Scan
from ._types import Cas, ManyIf


class Client:
    """A connection to a cluster, for threads, which may share one: what they ask at the same time travels together.

    endpoints: nodes as ``"host:port"``, or several with commas between them, or a list; None: ``COPPICE_ENDPOINTS``,
    else the nodes of ``coppice demo``. timeout: seconds in which every call ends. token, token_file: whom it acts for;
    else ``COPPICE_TOKEN_FILE``. tls_ca, tls_cert, tls_key: PEM files; else ``COPPICE_TLS_CA``, ``_CERT`` and ``_KEY``;
    without an authority nodes are spoken to in the clear. reads: ``"leader"`` (linearizable), ``"any"`` (linearizable,
    by any replica) or ``"stale"``.

    It connects when it is first used. A key has up to 4 KiB, a value up to 1 MiB. A call releases Python's lock while
    it waits, and Ctrl-C ends it: a write may then have been executed.

    >>> with Client("127.0.0.1:7400") as client:
    ...     client.put("apple", "red")
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
            False, endpoints, timeout, token, token_file, tls_ca, tls_cert, tls_key, reads
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the client: calls of other threads that wait end with Closed, or unknown."""
        self._core.close()

    def with_timeout(self, seconds: float) -> Client:
        """The same client with another timeout for its calls. Closing either closes both."""
        other = Client.__new__(Client)
        other._core = self._core.with_timeout(seconds)
        return other

    def connect(self) -> None:
        """Finds the cluster, which the first call does too."""
        self._core.connect(None)

    def get(self, key: Bytes, *, reads: Optional[str] = None) -> Optional[bytes]:
        """The value of a key; None: it is absent. ``reads`` as in the constructor."""
        return cast("Optional[bytes]", self._core.get(None, key, reads))

    def get_many(self, keys: Iterable[Bytes]) -> List[Optional[bytes]]:
        """The values of keys as of one moment, in their order, whatever partitions they lie in. At most 256 keys.
        Fails with Busy if they change too often to be read.
        """
        return cast("List[Optional[bytes]]", self._core.get_many(None, list(keys)))

    def put(self, key: Bytes, value: Bytes, *, ttl: Optional[float] = None) -> Optional[bytes]:
        """Writes, whether or not the key was there; the previous value. ``ttl``: the key expires after so many seconds,
        and soon after that it is gone; without it the key stays.
        """
        return cast("Optional[bytes]", self._core.one(None, Operation.put(key, value, ttl=ttl)))

    def expire(self, key: Bytes, ttl: float) -> bool:
        """Lets a key expire after so many seconds, whatever it did before; whether it is there. A put ends that, an
        update keeps it.
        """
        return cast(bool, self._core.one(None, Operation.expire(key, ttl)))

    def persist(self, key: Bytes) -> bool:
        """Lets a key stay that would expire; whether it would have."""
        return cast(bool, self._core.one(None, Operation.persist(key)))

    def ttl(self, key: Bytes) -> Optional[float]:
        """Seconds until a key expires; None: it is absent, or does not expire."""
        return cast("Optional[float]", self._core.ttl(None, key))

    def insert(self, key: Bytes, value: Bytes) -> Optional[bytes]:
        """Writes only if the key is absent. None: written; else the value that was there and stays."""
        return cast("Optional[bytes]", self._core.one(None, Operation.insert(key, value)))

    def delete(self, key: Bytes) -> Optional[bytes]:
        """Removes a key; the removed value."""
        return cast("Optional[bytes]", self._core.one(None, Operation.delete(key)))

    def delete_if(self, key: Bytes, expected: Bytes) -> bool:
        """Removes a key only if it holds exactly ``expected``; whether it did."""
        return cast(bool, self._core.one(None, Operation.delete_if(key, expected)))

    def cas(self, key: Bytes, expected: Bytes, value: Bytes) -> Cas:
        """Writes only if the key holds exactly ``expected``. The answer is true if it did."""
        return cast(Cas, self._core.one(None, Operation.cas(key, expected, value)))

    def increment(self, key: Bytes, by: int = 1) -> int:
        """Adds to a decimal integer of 64 bits; the sum. An absent key counts as 0. NotDone: the value is no integer,
        or the sum is out of range.
        """
        return cast(int, self._core.one(None, Operation.increment(key, by)))

    def append(self, key: Bytes, value: Bytes) -> int:
        """Appends to a value; its new length in bytes. An absent key counts as empty."""
        return cast(int, self._core.one(None, Operation.append(key, value)))

    def rename(self, key: Bytes, to: Bytes) -> bool:
        """Gives the value of a key to another of the same partition, over what that holds; whether there was one."""
        return cast(bool, self._core.one(None, Operation.rename(key, to)))

    def many(self, operations: Iterable[Operation]) -> Optional[List[Any]]:
        """Executes operations of one partition together, at one moment. Their results, in order; an operation that is
        not done has its NotDone there. None: executed, but the results are more than an answer can hold.
        """
        return cast("Optional[List[Any]]", self._core.many(None, list(operations)))

    def many_if(self, guards: Iterable[Operation], operations: Iterable[Operation]) -> ManyIf:
        """Executes operations of one partition together if all guards hold (``Operation.check_absent`` and others), and
        none of them else.
        """
        return _common.many_if_of(self._core.many_if(None, list(guards), list(operations)))

    def execute(self, operations: Iterable[Operation]) -> List[Any]:
        """Executes operations of any partitions, each for itself and in any order. A result or an exception each, in
        the order given: look at each.
        """
        return cast("List[Any]", self._core.execute(None, list(operations)))

    def resume(self, resume_token: str, command: Command) -> Any:
        """Finds out what became of a write whose outcome is unknown, and executes it if it was not: the operation, or
        those of ``many``, as it was given. It is executed once at most, however often it is resumed.
        """
        operations, alone = _common.resumed(command)
        return self._core.resume(None, resume_token, operations, alone)

    def count(
        self,
        low: Optional[Bytes] = None,
        high: Optional[Bytes] = None,
        *,
        prefix: Optional[Bytes] = None,
        reads: Optional[str] = None,
    ) -> int:
        """How many keys there are from ``low`` to before ``high``, or with a prefix, at one moment."""
        return cast(int, self._core.count(None, _common.bounds(low, high, prefix), reads))

    def delete_range(
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
        return cast(int, self._core.delete_range(None, bounds, most))

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
    ) -> Pairs:
        """The pairs from ``low`` to before ``high``, or with a prefix, in order: the state of one moment, read while it
        is iterated, in bounded memory. reverse: from the high end down. limit: so many pairs at most. keys_only: values
        are left empty.

        >>> for key, value in client.range(prefix="fruit/"): ...
        """
        bounds = _common.bounds(low, high, prefix)
        most = _common.pairs_max(limit)
        return Pairs(self._core, (bounds, reverse, most or 0, keys_only, reads), most is None)


class Pairs(Iterator[Tuple[bytes, bytes]]):
    """The pairs of a range, read while they are iterated. ``with`` ends the reading early."""

    def __init__(self, core: Core, arguments: Tuple[Any, ...], over: bool) -> None:
        self._core, self._arguments = core, arguments
        self._scan: Optional[Scan] = None
        self._pairs: Sequence[Tuple[bytes, bytes]] = ()
        self._at = 0
        self._over = over

    def __iter__(self) -> Pairs:
        return self

    def __next__(self) -> Tuple[bytes, bytes]:
        if self._at == len(self._pairs):
            self._fetch()
            if self._over:
                raise StopIteration
        pair = self._pairs[self._at]
        self._at += 1
        return pair

    def _fetch(self) -> None:
        self._pairs, self._at = (), 0
        if self._over:
            return
        try:
            if self._scan is None:
                self._scan = cast(Scan, self._core.range(None, *self._arguments))
            self._pairs = self._core.next_pairs(None, self._scan)
        except BaseException:
            self.close()
            raise
        if not self._pairs:
            self.close()

    def __enter__(self) -> Pairs:
        return self

    def __exit__(
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
