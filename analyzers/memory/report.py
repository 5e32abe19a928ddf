"""The entry point for memory: `analyze` takes snapshots and returns a `Report[MemoryData]`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from analyzers import store
from analyzers.device_memory import NcclProcess, process_of, with_nccl
from analyzers.errors import InputError, WorkbenchError
from analyzers.holders import read_holders
from analyzers.memory import diff
from analyzers.memory.call_sites import RankMemory
from analyzers.memory.evidence import fact, in_words, rank_subject, ranks_of
from analyzers.memory.leaks import leak_finding, leaking_devices
from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import READER, open_snapshot, rank_of, step_of
from analyzers.memory.model import CaughtRequest, Device, Growth, MemoryData, MissingEvidence, Oom, RankDifference
from analyzers.memory.rank_difference import Comparison, difference_of, outside_difference
from analyzers.memory.snapshot import CATEGORIES, Snapshot
from analyzers.memory.training_loop import training_loop
from analyzers.memory.verdict import comparison_findings, device_findings, finding_id, verdict
from analyzers.report import Finding, Report, Severity, Verdict, merged, ranked
from analyzers.run import Artefact, Kind, discover, selected, unreadable
from analyzers.store import is_milestone
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


def _uneven_rank(devices: Sequence[Device]) -> UnevenRank | None:
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


def _uneven_findings(devices: Sequence[Device]) -> list[Finding]:
    uneven = _uneven_rank(devices)
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


def _with_differences(devices: Sequence[Device], artefacts: Sequence[Artefact], options: store.Options) -> list[Device]:
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


_SCHEMA = "workbench.memory/1"
_NO_ACTION = ("memory.reserved",)
"""Findings whose next step is to do nothing."""
AnyPath = str | PathLike[str]


def analyze(
    snapshots: AnyPath | Sequence[AnyPath | Artefact],
    options: store.Options | None = None,
    nccl: Sequence[NcclProcess] = (),
) -> Report[MemoryData]:
    """Return a report on memory snapshots: why memory ran out, leaks, fragmentation, and the contents of the peak.

    `snapshots` is a run folder, a snapshot file, or several of these (or of the artefacts that
    `analyzers.run.discover` returns). Every schema since torch 2.0 is read: pickles of
    `torch.cuda.memory._dump_snapshot`, the JSON of `_memory_viz`, gzipped or not, and the files of
    `workbench.recorders.memory`. `options` select a rank and a step and limit the processes and the memory that
    reading takes. `nccl` is what the logs of the same run show about NCCL's buffers (`LogsData.nccl`). Nothing in a
    file is ever executed.

    A file that cannot be read becomes a finding (`memory.unreadable`), as long as at least one file can be read.

    Example:
        report = analyze("outputs", Options(rank=1))
        report.verdict.sentence  # "Rank 1 ran out of memory at step 6 in ..."
        [finding.id for finding in report.findings]  # ["memory.oom", "memory.oom.spike"]
        report.data.devices[0].categories["activations"]  # bytes at the peak

    Raises:
        InputError: There is no snapshot, no snapshot can be read, or none belongs to the selected rank and step.
    """
    options = options or store.Options()
    inputs = selected(list(_artefacts_of(snapshots)), options.rank, options.step)
    devices: list[Device] = []
    failures: list[tuple[Artefact, WorkbenchError]] = []
    times: dict[tuple[str, int], int] = {}
    loaded = store.load_each([[artefact.path] for artefact in inputs], READER, options)
    # One after the other, so that no more than the results of thousands of files are in memory.
    for number, (artefact, columns) in enumerate(zip(inputs, loaded, strict=True), 1):
        if isinstance(columns, WorkbenchError):
            failures.append((artefact, columns))
        else:
            snapshot = Snapshot(columns)
            devices += [_with_buffers(device, nccl) for device in _devices_of(snapshot, artefact)]
            times.update(_last_times(snapshot, artefact))
        if devices and is_milestone(number, len(inputs)):
            _tell_first_answer(options, number, _without_survived(devices, times))
    if not devices:
        raise failures[0][1]
    devices = _with_differences(_without_survived(devices, times), inputs, options)
    conclusion, findings = _conclude(devices, [unreadable(artefact, "memory", error) for artefact, error in failures])
    return Report(
        schema=_SCHEMA,
        inputs=[artefact.as_input() for artefact in inputs],
        verdict=conclusion,
        findings=findings,
        data=MemoryData(devices),
    )


def _conclude(devices: Sequence[Device], lost: Sequence[Finding]) -> tuple[Verdict, list[Finding]]:
    """Return the verdict on the devices, and all findings in order; `lost` are the findings on unreadable files."""
    findings = ranked(merged([*lost, *findings_of(devices)]))
    conclusion = verdict(devices, findings)
    # The finding that the verdict rests on comes first among those of its severity, and what needs no action last.
    lead = finding_id(conclusion.kind)
    findings.sort(key=lambda finding: (-finding.severity.weight, finding.id != lead, finding.id in _NO_ACTION))
    return conclusion, findings


def _tell_first_answer(options: store.Options, number: int, devices: Sequence[Device]) -> None:
    if options.progress and options.progress.is_awaited:
        options.progress.answer(number, verdict(devices, ranked(merged(findings_of(devices)))).sentence)


def _artefacts_of(snapshots: AnyPath | Sequence[AnyPath | Artefact]) -> Iterator[Artefact]:
    """Yield the memory snapshots at the given paths; artefacts are yielded as they are.

    Raises:
        InputError: A path does not exist, or has no memory snapshot.
    """
    given = [snapshots] if isinstance(snapshots, str | PathLike) else snapshots
    for source in given:
        if isinstance(source, Artefact):
            yield source
            continue
        path = Path(source)
        below = discover(path).of(Kind.SNAPSHOT)
        if not below:
            raise InputError(f"{path}: no memory snapshot there", "give a run folder, or a snapshot file")
        yield from below


def _devices_of(snapshot: Snapshot, artefact: Artefact) -> Iterator[Device]:
    rank, step = rank_of(snapshot, artefact), step_of(snapshot, artefact)
    # At an exit, and in our recorder's files, `step` is the last finished one: the memory ran out in the next.
    failing_step = None if step is None else step + (artefact.exit or "step" in snapshot.recorder)
    holders = read_holders(artefact.path.parents[1], rank) if len(artefact.path.parents) > 1 else None
    for device in msgspec.convert(snapshot.columns.meta["devices"], list[Device]):
        oom = device.oom
        if oom and oom.step is None:
            oom = msgspec.structs.replace(oom, step=failing_step)
        yield msgspec.structs.replace(
            device,
            path=str(artefact.path),
            rank=rank,
            step=step,
            oom=oom,
            holders=msgspec.UNSET if holders is None else holders,
        )


def _last_times(snapshot: Snapshot, artefact: Artefact) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield ((path, device), Unix time in µs of the last entry of its history) of each device that has a history."""
    for number in snapshot.devices:
        if len(trace := snapshot.device(number)):
            yield (str(artefact.path), number), int(trace.entry("time")[-1])


def _without_survived(devices: Sequence[Device], times: Mapping[tuple[str, int], int]) -> list[Device]:
    """Return the devices; a failed request after which its rank finished that step or a further one counts as caught.

    A later snapshot in the same folder shows that, if it is also later by the clock (`times`, in µs): jobs that are
    started again write the same steps again.
    """
    by_rank: dict[tuple[int | None, int], list[Device]] = {}
    for device in devices:
        by_rank.setdefault((device.rank, device.device), []).append(device)

    def with_caught(device: Device) -> Device:
        oom, failed_at = device.oom, times.get((device.path, device.device))
        if oom is None or oom.step is None or failed_at is None or device.rank is None:
            return device
        steps = [
            other.step
            for other in by_rank[device.rank, device.device]
            if Path(other.path).parent.parent == Path(device.path).parent.parent
            and other.step is not None
            and other.step >= oom.step
            and times.get((other.path, other.device), 0) > failed_at
        ]
        if not steps:
            return device
        caught = CaughtRequest(
            requested_bytes=oom.requested_bytes, count=1, index=oom.index, frames=oom.frames, went_on_to=max(steps)
        )
        return msgspec.structs.replace(device, oom=None, caught=caught)

    return [with_caught(device) for device in devices]


def _with_buffers(device: Device, nccl: Sequence[NcclProcess]) -> Device:
    """Return the device with NCCL's buffers as a part of its memory, if `nccl` has them for its rank."""
    process = process_of(nccl, device.rank, device.device)
    if process is None or not device.account:
        return device
    return msgspec.structs.replace(device, account=with_nccl(device.account, process), nccl=process)


def findings_of(devices: Sequence[Device]) -> Iterator[Finding]:
    for device in devices:
        yield from device_findings(device)
    leaks = [leak_finding(device, growing) for device, growing in leaking_devices(devices)]
    yield from leaks
    leaking_ranks = {rank for leak in leaks for rank in leak.ranks}
    # A rank that leaks is fuller than the others because it leaks: saying both would be saying it twice.
    yield from (uneven for uneven in _uneven_findings(devices) if not leaking_ranks & {*uneven.ranks})


def extend(
    report: Report[MemoryData],
    artefacts: Sequence[Artefact],
    options: store.Options | None = None,
    *,
    breakdown: bool = False,
    changes: str | None = None,
) -> Report[MemoryData]:
    """Return a copy of a report on memory snapshots, with a breakdown of the memory, or its peak with other settings.

    `artefacts` are the snapshots that `report` is about; they are read again. `breakdown` adds the table of segments,
    categories, tensors and layers of each device. `changes` are settings such as `batch=2x,ac=full`, and add the peak
    that the job would have with them: `batch`, `seq`, `dp_shard`, `ac` (activation checkpointing, `full` or
    `selective`), `optim_dtype`. Without either, the copy is equal to `report`.

    Raises:
        InputError: A setting is not known, or a recording lacks the data to predict its effect.
    """
    from analyzers.memory.breakdown import breakdowns  # late, as most reports do not need them
    from analyzers.memory.what_if import what_if

    options = options or store.Options()
    inputs = selected(artefacts, options.rank, options.step)
    data = msgspec.structs.replace(
        report.data,
        breakdown=breakdowns(inputs, options) if breakdown else [],
        what_if=what_if(inputs, changes, options) if changes else [],
    )
    return msgspec.structs.replace(report, data=data)


def compare(
    a: Sequence[Artefact], b: Sequence[Artefact], options: store.Options | None = None
) -> tuple[diff.Diff, list[Finding]]:
    """Return the difference between the peaks of two runs or files, and a finding about it.

    For each of the two, the device with the highest peak of allocated memory is compared.

    The list of findings is empty if the peaks are about the same.

    Raises:
        InputError: A snapshot cannot be read.
    """
    first, second = diff.fullest(a, options), diff.fullest(b, options)
    difference = diff.between(first, second, options)
    return difference, comparison_findings(difference, first, second, *_leak_between(first, second, options))


def _leak_between(
    a: diff.Instant, b: diff.Instant, options: store.Options | None
) -> tuple[Device, Growth] | tuple[None, None]:
    """Return what leaks in `b` if it is a later snapshot of the run of `a`, of the same rank and device; else None."""
    earlier, later = a.artefact, b.artefact
    is_one_run = (earlier.path.parents[1], earlier.rank, a.device) == (later.path.parents[1], later.rank, b.device)
    if not is_one_run or earlier.step is None or later.step is None or earlier.step >= later.step:
        return None, None
    devices = [
        device
        for instant in (a, b)
        for device in _devices_of(open_snapshot(instant.artefact, options), instant.artefact)
        if device.device == instant.device
    ]
    leaks = ((device, growing[0]) for device, growing in leaking_devices(devices) if device.step == later.step)
    return next(leaks, (None, None))
