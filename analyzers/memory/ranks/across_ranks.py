"""Compare the ranks of a job by their last snapshots: which one uses the most memory, and how much more."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from analyzers.memory.model import Device
from analyzers.memory.reading.schema import CATEGORIES

if TYPE_CHECKING:
    import pandas as pd

_EXCESS_SHARE, _EXCESS_BYTES = 0.1, 1 << 20
_RANKS_AT_LEAST = 2


@dataclass(frozen=True)
class UnevenRank:
    """A device (`fullest`) whose peak is clearly above the peaks of the other ranks' devices (`others`).

    `excess_bytes` is the peak of `fullest` minus the median peak of `others`.
    """

    fullest: Device
    others: Sequence[Device]
    excess_bytes: int

    @property
    def usual(self) -> dict[str, int]:
        """For each category, its bytes at the peak: the median over `others`."""
        return {name: int(median(device.categories[name] for device in self.others)) for name in CATEGORIES}

    @property
    def excess_by_category(self) -> dict[str, int]:
        """For each category, its bytes at the peak of `fullest` minus the median over `others`."""
        return {name: self.fullest.categories[name] - usual for name, usual in self.usual.items()}


def matrix(devices: Sequence[Device]) -> "pd.DataFrame":
    """Return a table of the last snapshot of each device, those nearest to their memory limit first.

    Columns: rank, device, step, peak, limit (0: unknown), and one column per category with its bytes at the peak.
    """
    import pandas as pd

    rows = [
        (d.rank, d.device, d.step, d.peak_allocated_bytes, d.limit_bytes or 0, *(d.categories[c] for c in CATEGORIES))
        for d in sorted(latest(devices), key=_fullness, reverse=True)
    ]
    return pd.DataFrame(rows, columns=["rank", "device", "step", "peak", "limit", *CATEGORIES])


def latest(devices: Sequence[Device]) -> list[Device]:
    """Return the last snapshot of each (rank, device) pair.

    If two snapshots are of the same step, the one written when an allocation failed counts as the later one.
    """
    # Later entries of a dict overwrite earlier ones, so the last snapshot of each device stays.
    in_time = sorted(devices, key=lambda device: (device.step or 0, device.oom is not None))
    return list({(device.rank, device.device): device for device in in_time}.values())


def _fullness(device: Device) -> tuple[bool, float]:
    """Return a key to sort devices by how full they are: those that ran out of memory come last, as the fullest.

    The others are sorted by the share of memory used: the peak divided by the memory limit, or the peak itself if no
    limit is known.
    """
    return device.oom is not None, device.peak_allocated_bytes / (device.limit_bytes or 1)


def uneven_rank(devices: Sequence[Device]) -> UnevenRank | None:
    """Return an `UnevenRank` for the device whose peak is clearly above the median of the others; None without one.

    Only the last snapshot of each (rank, device) pair in `devices` counts. If some of these have no failed request,
    only they count. The result is also None if too few ranks are known.
    """
    # A rank that failed was recorded at another moment than those that did not: compare like with like.
    last = latest([device for device in devices if not device.oom]) or latest(devices)
    if len({device.rank for device in last} - {None}) < _RANKS_AT_LEAST:
        return None
    fullest = max(last, key=_fullness)
    others = [device for device in last if device is not fullest]
    excess = fullest.peak_allocated_bytes - median(device.peak_allocated_bytes for device in others)
    if excess < max(_EXCESS_BYTES, _EXCESS_SHARE * fullest.peak_allocated_bytes):
        return None
    return UnevenRank(fullest, others, int(excess))
