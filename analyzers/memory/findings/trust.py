"""Findings about how far the numbers of a snapshot can be trusted."""

from collections.abc import Iterator

from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.model import Device
from analyzers.report import Finding, Severity
from analyzers.words import share, size

UNKNOWN_SHARE = 0.5


def trust_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if the trace contradicts the snapshot, and one if most of the peak is of unknown category."""
    if not device.consistent:
        yield inconsistent_finding(device)
    unknown = device.categories["unknown"]
    if device.peak_allocated_bytes and unknown > UNKNOWN_SHARE * device.peak_allocated_bytes:
        yield uncategorised_finding(device, unknown)


def inconsistent_finding(device: Device) -> Finding:
    """Return that the replay of the trace does not end at the blocks of the snapshot."""
    return Finding(
        id="memory.inconsistent",
        severity=Severity.WARNING,
        title="The trace and the blocks of the snapshot do not agree",
        why=f"After all {device.entries} trace entries {size(device.end_allocated_bytes)} should be allocated, but the"
        " blocks in the snapshot have another total. Some entries are missing, or the file was edited.",
        next="Record again without the `skip_actions` argument of torch.cuda.memory._record_memory_history. Until then"
        " take the sizes as approximate.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"device {device.device}: {device.entries} entries")],
        confidence=1.0,
    )


def uncategorised_finding(device: Device, unknown: int) -> Finding:
    """Return that most of the peak is of unknown category."""
    peak = device.peak_allocated_bytes
    return Finding(
        id="memory.uncategorised",
        severity=Severity.INFO,
        title=f"{share(unknown, peak)} of the peak is of unknown category",
        why="The stacks of these blocks were not recorded, or they were allocated before the recording started.",
        next='Record from the start of the process with torch.cuda.memory._record_memory_history(stacks="all"), or with'
        " workbench.recorders.memory.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(device, f"unknown category: {size(unknown)} of {size(device.peak_allocated_bytes)} at the peak")
        ],
        confidence=1.0,
    )
