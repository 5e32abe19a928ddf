"""Find the event that an exception reports, and the exception in a chain that shows why a process failed.

The chain of an exception has the exceptions that led to it: its causes, and exceptions during whose handling it was
raised.
"""

from analyzers.logs.model import EventKind, Facts, Reason
from analyzers.logs.reading.aftermath import is_of_worker
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.operations import with_operation
from analyzers.logs.reading.patterns import recognise
from analyzers.logs.reading.tracebacks import Raised

COMMUNICATION = {"DistBackendError": EventKind.NCCL_ERROR, "DistNetworkError": EventKind.CONNECTION_LOST,
                 "DistStoreError": EventKind.TIMEOUT, "DistError": EventKind.NCCL_ERROR,
                 "RendezvousClosedError": EventKind.CONNECTION_LOST}  # fmt: skip
BROKEN = ("ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError")
"""Python's exceptions for any lost connection, whether to another rank, to a server or to a child process."""
_LOST_WORKER = Found(EventKind.DATALOADER_WORKER, Facts(reason=Reason.WORKER_EXIT))
WAITS = (EventKind.TIMEOUT, EventKind.CONNECTION_LOST)


def is_wait(kind: EventKind, facts: Facts) -> bool:
    """Return whether an event shows that a rank's wait in a collective failed by a timeout or a lost connection.

    `kind` and `facts` are the kind and the facts of the event.
    """
    return kind in WAITS and facts.operation is not None


def meaning_of(raised: Raised) -> Found:
    """Return the event that an exception reports, taken from the first exception in its chain that a pattern matches.

    The chain of `raised` has the exceptions that led to it; lost connections in the chain do not count. If no pattern
    recognises any of them, the class of the exception decides (see `_by_name`). If the exception itself is a timeout or
    lost connection in a collective, its chain is ignored, because the earlier exceptions were handled and have events
    of their own.
    """
    last = with_operation(_found_of(raised) or _by_name(raised), raised)
    if is_wait(last.kind, last.facts):
        return last
    meanings = (_found_of(link) for link in raised.chain)
    first = next((found for found in meanings if found and found.kind is not EventKind.CONNECTION_LOST), None)
    return with_operation(first, raised) if first else last


def _found_of(raised: Raised) -> Found | None:
    """Return the event of an exception, judged by its own text and not by the exceptions that led to it.

    The result is None if no pattern recognises the text.
    """
    found = recognise(raised.text)
    is_worker = found is not None and found.kind is EventKind.CONNECTION_LOST and is_of_worker(raised)
    return _LOST_WORKER if is_worker else found


def _by_name(raised: Raised) -> Found:
    """Return the event of an exception whose text no pattern recognises, judged by the name of its class.

    A class without a meaning of its own gives an event of the kind `EXCEPTION`.
    """
    name = raised.name.rpartition(".")[2]
    if name == "MemoryError":
        return Found(EventKind.HOST_OUT_OF_MEMORY, Facts(reason=Reason.HOST_ALLOCATOR, error_name=name))
    if name in BROKEN and is_of_worker(raised):
        return _LOST_WORKER
    kind = EventKind.CONNECTION_LOST if name in BROKEN and _is_of_ranks(raised) else EventKind.EXCEPTION
    return Found(COMMUNICATION.get(name, kind), Facts(error_name=name))


def _is_of_ranks(raised: Raised) -> bool:
    """Return whether an exception was raised in `torch.distributed`, so that a lost connection is between ranks."""
    return any("/torch/distributed/" in file for file, _, _ in raised.frames)
