"""Write the finding that PyTorch's allocator does not manage a large part of the device's memory."""

from collections.abc import Iterator

from analyzers.device_memory import (
    in_words,
    is_large,
    untracked_advice,
    untracked_reason,
    untracked_title,
    would_fit,
)
from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.model import Device
from analyzers.report import Finding, Severity


def untracked_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if a large part of the device's memory is outside PyTorch's allocator.

    The finding is a warning if a failed request would have fitted into that part.
    """
    if not is_large(device.account):
        return
    decisive = device.oom is not None and would_fit(device.account, device.oom.requested_bytes)
    yield Finding(
        id="memory.untracked",
        severity=Severity.WARNING if decisive else Severity.INFO,
        title=untracked_title(device.account),
        why=untracked_reason(device.account)
        + (
            " The request that failed would have fitted into the memory that libraries and other processes use."
            if decisive
            else ""
        ),
        next=untracked_advice(device.account),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, in_words(part)) for part in device.account],
        confidence=0.6,
    )
