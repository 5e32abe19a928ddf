"""Find device memory that PyTorch's allocator does not track, from the sizes in out-of-memory messages."""

from collections.abc import Iterable, Iterator, Sequence

from analyzers.case.facts import EventKind, Facts, LogEvent
from analyzers.device_memory import (
    KnownMemory,
    MemoryPart,
    NcclProcess,
    account_for,
    is_large,
    nccl_words,
    part_text,
    process_of,
    untracked,
    untracked_advice,
    untracked_reason,
    untracked_title,
    with_nccl,
    would_fit,
)
from analyzers.logs.model import LogMemory
from analyzers.report import Evidence, Finding, Severity


def untracked_findings(accounts: Sequence[LogMemory], nccl: Sequence[NcclProcess] = ()) -> Iterator[Finding]:
    """Yield a finding on the device with the most memory outside the allocator, if it is a large part of its memory.

    `accounts` has the parts of the memory at each failed request, `nccl` the facts from NCCL's own lines. The finding
    is a warning if the failed request would have fitted into this memory.
    """
    large = [account for account in accounts if is_large(account.parts)]
    if not large:
        return
    worst = max(large, key=lambda account: untracked(account.parts))
    process = process_of(nccl, worst.rank, worst.device)
    buffers = nccl_words(process) if process else []
    decisive = would_fit(worst.parts, worst.requested_bytes)
    yield Finding(
        id="logs.untracked_memory",
        severity=Severity.WARNING if decisive else Severity.INFO,
        title=untracked_title(worst.parts),
        why=untracked_reason(worst.parts, decisive=decisive),
        next=untracked_advice(worst.parts, process),
        ranks=sorted({account.rank for account in large if account.rank is not None}),
        evidence=[Evidence(text=text, source=worst.path) for text in (*map(part_text, worst.parts), *buffers)],
        confidence=0.6,
    )


# Divide the memory of a device into parts (such as allocated, cached, free), from each out-of-memory message.

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
