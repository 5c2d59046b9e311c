"""Coppice, a distributed ordered key-value store, from Python.

>>> from coppice import Client
>>> with Client("127.0.0.1:7400") as client:
...     client.put("apple", "red")
...     client.get("apple")
b'red'
"""

from ._async import AsyncClient, AsyncPairs
from ._client import Client, Pairs
from ._coppice import Operation
from ._types import (
    Busy,
    Cas,
    Closed,
    CoppiceError,
    Denied,
    Failed,
    Full,
    Incompatible,
    Interrupted,
    Invalid,
    ManyIf,
    NotDone,
    OutcomeUnknown,
    SpansPartitions,
    Timeout,
    TooLarge,
    Unavailable,
)

__all__ = [
    "AsyncClient",
    "AsyncPairs",
    "Busy",
    "Cas",
    "Client",
    "Closed",
    "CoppiceError",
    "Denied",
    "Failed",
    "Full",
    "Incompatible",
    "Interrupted",
    "Invalid",
    "ManyIf",
    "NotDone",
    "Operation",
    "OutcomeUnknown",
    "Pairs",
    "SpansPartitions",
    "Timeout",
    "TooLarge",
    "Unavailable",
]
