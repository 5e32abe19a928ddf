"""Compare the ranks of a job by their last snapshots: which one uses the most memory, and how much more."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from analyzers import store
from analyzers.errors import WorkbenchError
from analyzers.memory.call_sites import RankMemory
from analyzers.memory.evidence import fact, in_words, rank_subject, ranks_of
from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import open_snapshot
from analyzers.memory.model import Device, MissingEvidence, Oom, RankDifference
from analyzers.memory.rank_difference import Comparison, difference_of, outside_difference
from analyzers.memory.snapshot import CATEGORIES
from analyzers.memory.training_loop import training_loop
from analyzers.report import Finding, Severity
from analyzers.run import Artefact
from analyzers.words import share, size

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


_EVIDENCE_SHOWN = 3
_NOTABLE_SHARE = 0.001
"""The share of the difference between ranks above which a category is evidence."""
ADVICE = {
    "parameters": "Split the layers more evenly over the pipeline stages, or shard what only this rank keeps whole.",
    "optimizer_state": "Split the parameters more evenly over the ranks: optimizer state is as uneven as they are.",
    "gradients": "Split the parameters more evenly over the ranks: gradients are as uneven as they are.",
    "activations": "Give this rank shorter sequences; if it is a pipeline stage, fewer microbatches in flight.",
    "inputs": "Give every rank samples of similar length.",
}
_OTHER_ADVICE = "Compare the memory snapshots of this rank and of another one (`workbench compare A B`)."


def uneven_findings(devices: Sequence[Device]) -> list[Finding]:
    uneven = uneven_rank(devices)
    return [_uneven_finding(uneven)] if uneven else []


def _usual_of(uneven: UnevenRank) -> str:
    return "other rank" if len(uneven.others) == 1 else "median of the other ranks"


def _uneven_finding(uneven: UnevenRank) -> Finding:
    device, excess = uneven.fullest, uneven.excess_bytes
    more, usual = uneven.excess_by_category, uneven.usual
    worst = max(more, key=lambda name: more[name])
    who = rank_subject(ranks_of(device))
    return Finding(
        id="memory.uneven",
        severity=Severity.WARNING,
        title=f"{who.capitalize()} peaks {size(excess)} above the {_usual_of(uneven)}, so it would run out of memory"
        " first",
        why=f"The peak of {who} is {size(device.peak_allocated_bytes)}, that of the {_usual_of(uneven)}"
        f" {size(device.peak_allocated_bytes - excess)}. The difference is mostly {in_words(worst)}:"
        f" {size(more[worst])}.",
        next=f"{ADVICE.get(worst, _OTHER_ADVICE)} If this difference were spread evenly over all ranks, the peak of"
        f" {who} would be {size(excess - excess / (len(uneven.others) + 1))} lower.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"{in_words(name)}: {size(device.categories[name])} on {who}, {size(usual[name])}"
                f" {'on' if len(uneven.others) == 1 else 'in'} the {_usual_of(uneven)}"
                f" ({share(more[name], excess)} of the difference)",
            )
            for name in sorted(more, key=lambda name: -more[name])[:_EVIDENCE_SHOWN]
            if more[name] > _NOTABLE_SHARE * excess
        ],
        confidence=0.8,
    )


_PEERS_AT_MOST = 8
"""With how many ranks a rank is compared: those with the highest peaks, as they excuse most."""
Open = Callable[[Device], Replay]
"""A function that returns the recording of a device."""


def with_differences(devices: Sequence[Device], artefacts: Sequence[Artefact], options: store.Options) -> list[Device]:
    """Return the devices; those that ran out of memory have the difference from the ranks that did not.

    `artefacts` are the snapshots of the devices. They have been read before, so nothing is counted as read again.
    """
    artefact_of = {str(artefact.path): artefact for artefact in artefacts}
    silent = replace(options, progress=None)

    def replay_of(device: Device) -> Replay:
        return Replay(open_snapshot(artefact_of[device.path], silent).device(device.device))

    peers = _peers_of(devices)
    return [_with_difference(device, peers, replay_of) if device.oom else device for device in devices]


def _peers_of(devices: Sequence[Device]) -> list[Device]:
    """Return the last recordings of the ranks that did not run out of memory, the fullest first."""
    failed = {device.rank for device in devices if device.oom}
    last = latest([device for device in devices if device.rank is not None and device.rank not in failed])
    recorded = [device for device in last if MissingEvidence.HISTORY not in device.missing and device.top_stacks]
    return sorted(recorded, key=lambda device: -device.peak_allocated_bytes)[:_PEERS_AT_MOST]


def _with_difference(device: Device, peers: Sequence[Device], replay_of: Open) -> Device:
    """Return a device that ran out of memory with its difference from `peers`, if there is one."""
    oom = device.oom
    if oom is None or device.rank is None or not peers:
        return device
    difference = outside_difference(device, oom, peers) or compared(device, oom, peers, replay_of)
    if difference is None:
        return device
    steps = [peer.step for peer in peers if peer.step is not None]
    ranks = sorted(peer.rank for peer in peers if peer.rank is not None)
    complete = msgspec.structs.replace(difference, ranks=ranks, until_step=min(steps, default=None))
    return msgspec.structs.replace(device, oom=msgspec.structs.replace(oom, difference=complete))


def compared(device: Device, oom: Oom, peers: Iterable[Device], replay_of: Open) -> RankDifference | None:
    """Return how the memory of a device that ran out of it differs from that of other ranks; None if it does not."""
    try:
        failed, others = replay_of(device), [RankMemory(replay_of(peer)) for peer in peers]
    except WorkbenchError:
        # A file has changed or gone since it was read: the report on it stands.
        return None
    ends = [step.end for step in training_loop(failed).steps if step.end and step.end <= oom.index]
    return difference_of(Comparison(RankMemory(failed), oom, others, max(ends, default=None)))
