"""The same instant on many ranks: who holds more than the others, and what of."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from analyzers.memory.model import Device
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import share, size

if TYPE_CHECKING:
    import pandas as pd

UNEVEN, UNEVEN_BYTES = 0.1, 1 << 20
RANKS_AT_LEAST = 2


def matrix(devices: Sequence[Device]) -> "pd.DataFrame":
    """A row a device of the last step, the first to run out in front.

    Columns: rank, device, step, peak, limit (0: unknown), a column a category with its bytes at the peak.
    """
    import pandas as pd

    rows = [
        (d.rank, d.device, d.step, d.peak_allocated_bytes, d.limit_bytes or 0, *(d.categories[c] for c in CATEGORIES))
        for d in sorted(latest(devices), key=fullness, reverse=True)
    ]
    return pd.DataFrame(rows, columns=["rank", "device", "step", "peak", "limit", *CATEGORIES])


def latest(devices: Sequence[Device]) -> list[Device]:
    """Of each rank and device what its last snapshot says; of one step, that of the failure came last."""
    in_time = sorted(devices, key=lambda device: (device.step or 0, device.oom is not None))
    return list({(device.rank, device.device): device for device in in_time}.values())


def fullness(device: Device) -> tuple[bool, float]:
    """Grows the nearer a device is to running out; one that did is the fullest."""
    return device.oom is not None, device.peak_allocated_bytes / (device.limit_bytes or 1)


def uneven(devices: Sequence[Device]) -> list[Finding]:
    """A finding if one rank holds clearly more than the middle one: it runs out first."""
    # One that failed was recorded at another moment than those that did not.
    last = latest([device for device in devices if not device.oom]) or latest(devices)
    if len({device.rank for device in last} - {None}) < RANKS_AT_LEAST:
        return []
    first = max(last, key=fullness)
    others = [device for device in last if device is not first]
    excess = first.peak_allocated_bytes - median(device.peak_allocated_bytes for device in others)
    if excess < max(UNEVEN_BYTES, UNEVEN * first.peak_allocated_bytes):
        return []
    return [uneven_finding(first, others, int(excess))]


def uneven_finding(first: Device, others: Sequence[Device], excess: int) -> Finding:
    usual = {name: int(median(device.categories[name] for device in others)) for name in CATEGORIES}
    more = {name: first.categories[name] - usual[name] for name in CATEGORIES}
    kind = max(more, key=lambda name: more[name])
    peaks = sorted(device.peak_allocated_bytes for device in [first, *others])
    return Finding(
        id="memory.uneven",
        severity=Severity.WARNING,
        title=f"Rank {first.rank} peaks {size(excess)} above the others and runs out first",
        why=f"It peaks at {size(first.peak_allocated_bytes)}, the others at {size(peaks[0])} and more;"
        f" {size(more[kind])} of the difference are {kind.replace('_', ' ')}.",
        next=f"{NEXT.get(kind, 'Look at what this rank does that the others do not.')}"
        f" Evenly spread the peak would be {size(excess - excess / (len(others) + 1))} lower.",
        ranks=[] if first.rank is None else [first.rank],
        step=first.step,
        evidence=[
            Evidence(
                text=f"{name}: {size(first.categories[name])} here, {size(usual[name])} on the middle rank"
                f" ({share(more[name], excess)} of the difference)",
                source=first.path,
            )
            for name in sorted(more, key=lambda name: -more[name])[:3]
            if more[name] > 0
        ],
        confidence=0.8,
    )


NEXT = {
    "parameters": "Split the layers more evenly over pipeline stages, or shard what this rank keeps whole.",
    "optimizer_state": "Split the parameters more evenly: the optimizer's state follows them.",
    "gradients": "Split the parameters more evenly: the gradients follow them.",
    "activations": "Give this rank shorter sequences, or as a pipeline stage fewer micro-batches in flight.",
    "inputs": "Give every rank samples of like length.",
}
