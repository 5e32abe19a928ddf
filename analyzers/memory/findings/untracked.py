"""Write the finding that PyTorch's allocator does not manage a large part of the device's memory."""

from collections.abc import Iterator

from analyzers.device_memory import (
    Holder,
    in_words,
    is_large,
    nccl_words,
    untracked_advice,
    untracked_reason,
    untracked_title,
    would_fit,
)
from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.model import Device
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import quantity, size


def untracked_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if a large part of the device's memory is outside PyTorch's allocator.

    The finding is a warning if a failed request would have fitted into that part.
    """
    if not is_large(device.account):
        return
    process = device.nccl or None
    decisive = device.oom is not None and would_fit(device.account, device.oom.requested_bytes)
    yield Finding(
        id="memory.untracked",
        severity=Severity.WARNING if decisive else Severity.INFO,
        title=untracked_title(device.account),
        why=untracked_reason(device.account, decisive=decisive),
        next=untracked_advice(device.account, process),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[*(fact(device, in_words(part)) for part in device.account), *communicators(device)],
        confidence=0.6,
    )


def communicators(device: Device) -> Iterator[Evidence]:
    """Yield the communicators with their buffers if NCCL's log has them, else the number of process groups.

    The number comes with the largest size that one of them can have on average.
    """
    if device.nccl:
        yield from (fact(device, text) for text in nccl_words(device.nccl))
        return
    groups = device.nccl_groups or 0
    holders = (Holder.LIBRARIES, Holder.OUTSIDE)
    for part in device.account if groups else ():
        if part.holder in holders:
            each = size(part.high_bytes // groups)
            yield fact(
                device,
                f"this rank is in {quantity(groups, 'process group')} of NCCL: on average at most {each} for each",
            )
