"""Find device memory that PyTorch's allocator does not track, from the sizes in out-of-memory messages."""

from collections.abc import Iterator, Sequence

from analyzers.device_memory import (
    in_words,
    is_large,
    nccl_words,
    untracked,
    untracked_advice,
    untracked_reason,
    untracked_title,
    would_fit,
)
from analyzers.device_memory.nccl import NcclProcess, process_of
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
        evidence=[Evidence(text=text, source=worst.path) for text in (*map(in_words, worst.parts), *buffers)],
        confidence=0.6,
    )
