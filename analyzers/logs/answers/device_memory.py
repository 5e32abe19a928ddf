"""Divide the memory of a device into parts (such as allocated, cached, free), from each out-of-memory message."""

from collections.abc import Iterable, Iterator, Sequence

from analyzers.device_memory import KnownMemory, MemoryPart, account_for, with_nccl
from analyzers.device_memory.nccl import NcclProcess, process_of
from analyzers.logs.model import EventKind, Facts, LogEvent, LogMemory

_MESSAGES_AT_MOST = 64


def device_accounts(events: Iterable[LogEvent], nccl: Sequence[NcclProcess] = ()) -> list[LogMemory]:
    """Return the parts of a device's memory at each failed request for memory, in the order of `events`.

    `nccl` has the facts about NCCL's buffers in each process, from the logs. Messages with the same rank, device and
    requested size count as one; at most `_MESSAGES_AT_MOST` are returned.
    """
    accounts: dict[tuple[int | None, int | None, int], LogMemory] = {}
    for account in messages(events, nccl):
        accounts.setdefault((account.rank, account.device, account.requested_bytes), account)
    return list(accounts.values())[:_MESSAGES_AT_MOST]


def messages(events: Iterable[LogEvent], nccl: Sequence[NcclProcess]) -> Iterator[LogMemory]:
    """Yield the parts of a device's memory for each out-of-memory message that has the necessary sizes."""
    for event in events:
        known = _known_memory(event.facts) if event.kind is EventKind.OUT_OF_MEMORY else None
        if known:
            yield LogMemory(
                rank=event.rank,
                device=event.facts.device,
                path=event.path,
                line=event.line,
                requested_bytes=event.facts.requested_bytes or 0,
                parts=parts_of(known, process_of(nccl, event.rank, event.facts.device)),
            )


def parts_of(known: KnownMemory, process: NcclProcess | None) -> list[MemoryPart]:
    """Return the parts of a device's memory; NCCL's buffers are a separate part if the log of `process` shows them."""
    parts = account_for(known)
    return parts if process is None else with_nccl(parts, process)


def _known_memory(facts: Facts) -> KnownMemory | None:
    """Return the sizes in an out-of-memory message; None if one is missing, or if they contradict each other.

    `facts` are the facts of the event that reports the message.
    """
    total, free, allocated, cached = facts.total_bytes, facts.free_bytes, facts.allocated_bytes, facts.unallocated_bytes
    if total is None or free is None or allocated is None or cached is None or allocated + cached + free > total:
        return None
    return KnownMemory(total, free, allocated, cached, facts.process_bytes, rounded=True)
