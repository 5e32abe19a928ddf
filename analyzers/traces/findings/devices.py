"""Write the finding about several devices of one process that work one after the other."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.findings.common import lacks_kernels, times_text
from analyzers.traces.model import RankTrace
from analyzers.words import duration_ns, rank_ranges, share

_IDLE_AT_LEAST = 0.2
"""The share of its time that each device must wait for others, with kernels launched already."""
_TOGETHER_AT_MOST = 1.2
"""The sum of the devices' times at work over the longest recording of one, up to which they hardly work at once.

It is more than 1 even if they never do, because the recordings of the devices begin and end at different turns.
"""


def devices_in_turn(accounts: Sequence[RankTrace]) -> Iterator[Finding]:
    """Yield a finding for each process whose devices wait for one another, as in a model that is spread over them.

    Example: each of two devices works for 50 of 100 ms and waits for the other one for 50 ms, although its kernels were
    launched already. The sum of their times at work, 100 ms, is the time recorded.
    """
    by_process = defaultdict[tuple[str, int | None], list[RankTrace]](list)
    for account in accounts:
        if account.device is not None and account.span_ns and not lacks_kernels(account):
            by_process[account.path, account.rank].append(account)
    for devices in by_process.values():
        span = max(account.span_ns for account in devices)
        together = sum(account.busy_ns for account in devices) > _TOGETHER_AT_MOST * span
        wait = all(account.idle_dependency_ns > _IDLE_AT_LEAST * account.span_ns for account in devices)
        if len(devices) > 1 and wait and not together:
            yield _turns_finding(devices, span)


def _turns_finding(devices: Sequence[RankTrace], span: int) -> Finding:
    rank, busiest = devices[0].rank, max(account.busy_ns for account in devices)
    whose = "" if rank is None else f" of rank {rank}"
    numbers = rank_ranges(account.device for account in devices if account.device is not None)
    return Finding(
        id="trace.devices_in_turn",
        severity=Severity.WARNING,
        title=f"The devices {numbers}{whose} work one after the other: none has work for more than"
        f" {share(busiest, span)} of the time",
        why="Each of them waits with kernels that were launched already, and they hardly ever work at once: parts of"
        " the model are on several devices of one process, and each part needs the result of the one before.",
        next="Split the batch into microbatches that go through the devices as a pipeline"
        " (torch.distributed.pipelining), or run one process per device with FSDP. If the model fits on one device, use"
        " DDP, or only that device.",
        ranks=[] if rank is None else [rank],
        evidence=[
            Evidence(
                text=f"{times_text(account)}; {duration_ns(account.idle_dependency_ns)} of it with kernels launched",
                source=account.path,
            )
            for account in devices
        ],
        confidence=0.8,
    )
