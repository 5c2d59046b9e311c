"""What calls answer, and how they fail. The Rust part of the package makes these by their names."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional


class Cas(NamedTuple):
    """What a compare-and-set came to. True if the new value was written."""

    done: bool
    #: The value found before, written over or not; None: the key was absent.
    current: Optional[bytes]

    def __bool__(self) -> bool:
        return self.done


class ManyIf(NamedTuple):
    """What a guarded command came to. True if all guards hold and the operations ran."""

    done: bool
    #: Of each operation; None: nothing ran, or the results are more than an answer can hold.
    results: Optional[List[Any]]
    #: The guard that does not hold, from 0; None: all do.
    unmet: Optional[int]

    def __bool__(self) -> bool:
        return self.done


class CoppiceError(Exception):
    """Every error of a call."""


class OutcomeUnknown(CoppiceError):
    """A write was sent and its answer is lost: it may have been executed, once at most.

    ``client.resume(error.resume_token, operation)`` finds out, and executes it if it was not.
    """

    #: Names the write; None: it cannot be resumed.
    resume_token: Optional[str] = None


class Failed(CoppiceError):
    """The call certainly had no effect. Of a read: there is no answer."""


class Timeout(Failed, TimeoutError):
    """The timeout passed before the call was sent, or (a read) before it was answered."""


class Unavailable(Failed, ConnectionError):
    """No node that could serve it was reached, or a partition has no leader."""


class Busy(Failed):
    """The nodes, or this client, have too much to do. Try again later."""


class Full(Failed):
    """Disks or memory are at their limit: the cluster takes no writes that grow. Deletes are taken."""


class Denied(Failed, PermissionError):
    """The role of this client's user does not allow it."""


class TooLarge(Failed, ValueError):
    """A key, a value or a command is above its limit."""


class Invalid(Failed, ValueError):
    """A command without operations, or a resumed one that is another."""


class SpansPartitions(Failed):
    """The keys of one command lie in several partitions."""


class Incompatible(Failed):
    """The nodes do not know this request, or belong to another cluster."""


class Interrupted(Failed):
    """A range was interrupted after some of it was given out: go on behind ``last``, at another moment, or anew."""

    #: The last key that was given out.
    last: Optional[bytes] = None


class NotDone(Failed, ValueError):
    """The value does not allow it: no integer to be incremented, a sum out of range, a value that would be too long."""


class Closed(Failed):
    """The client was closed."""
