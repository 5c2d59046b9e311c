"""What both clients share: how one is configured, and what arguments mean."""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

from ._coppice import Core, Operation
from ._types import ManyIf

#: A key or a value: str is its UTF-8. Answers are bytes.
Bytes = Union[bytes, bytearray, str]
Endpoints = Union[str, Sequence[str], None]
Path = Union[str, "os.PathLike[str]", None]
#: Operations that are resumed: one, or those of `many`.
Command = Union[Operation, Iterable[Operation]]

#: The nodes of `coppice demo`.
DEFAULT_ENDPOINTS = "127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420"


def core(
    asynchronous: bool,
    endpoints: Endpoints,
    timeout: float,
    token: Optional[str],
    token_file: Path,
    tls_ca: Path,
    tls_cert: Path,
    tls_key: Path,
    reads: str,
) -> Core:
    """A client that connects when it is first used."""
    if endpoints is None:
        endpoints = os.environ.get("COPPICE_ENDPOINTS") or DEFAULT_ENDPOINTS
    if isinstance(endpoints, str):
        endpoints = endpoints.split(",")
    nodes = [endpoint.strip() for endpoint in endpoints if endpoint.strip()]
    if not nodes:
        raise ValueError("no endpoints: give at least one node, as 'host:port'")

    def path(given: Path, variable: str) -> Optional[str]:
        return os.environ.get(variable) or None if given is None else os.fspath(given)

    if token is None:
        token_file = path(token_file, "COPPICE_TOKEN_FILE")

    return Core(
        nodes,
        asynchronous=asynchronous,
        timeout=timeout,
        token=token,
        token_file=None if token_file is None else os.fspath(token_file),
        tls_ca=path(tls_ca, "COPPICE_TLS_CA"),
        tls_cert=path(tls_cert, "COPPICE_TLS_CERT"),
        tls_key=path(tls_key, "COPPICE_TLS_KEY"),
        reads=reads,
    )


def bounds(
    low: Optional[Bytes], high: Optional[Bytes], prefix: Optional[Bytes]
) -> Tuple[Optional[Bytes], Optional[Bytes], Optional[Bytes]]:
    if prefix is not None and (low is not None or high is not None):
        raise ValueError("a range has either a prefix, or low and high")
    return low, high, prefix


def bounds_to_delete(
    low: Optional[Bytes], high: Optional[Bytes], prefix: Optional[Bytes]
) -> Tuple[Optional[Bytes], Optional[Bytes], Optional[Bytes]]:
    if low is None and high is None and prefix is None:
        raise ValueError("delete_range needs low, high or prefix; prefix='' means every key")
    return bounds(low, high, prefix)


def pairs_max(limit: Optional[int]) -> Optional[int]:
    """The most pairs, as Rust counts them: 0 is no limit. None: no pairs are wanted."""
    if limit is None:
        return 0
    if limit < 0:
        raise ValueError(f"limit is {limit}; it is 0 or more, or None for no limit")
    return limit or None


def many_if_of(answer: Any) -> ManyIf:
    if isinstance(answer, int):
        return ManyIf(False, None, answer)
    return ManyIf(True, answer, None)


def resumed(command: Command) -> Tuple[List[Operation], bool]:
    """The operations, and whether it is one that stood alone."""
    if isinstance(command, Operation):
        return [command], True
    return list(command), False
