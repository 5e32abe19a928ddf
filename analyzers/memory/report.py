"""The entry point for memory: `analyze` takes snapshots and returns a `Report[MemoryData]`."""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.device_memory import with_nccl
from analyzers.device_memory.nccl import NcclProcess, process_of
from analyzers.errors import InputError, WorkbenchError
from analyzers.memory import diff
from analyzers.memory.across_ranks import uneven_findings, with_differences
from analyzers.memory.leaks import leak_finding, leaking_devices
from analyzers.memory.loading import READER, rank_of, step_of
from analyzers.memory.model import Device, MemoryData
from analyzers.memory.snapshot import Snapshot
from analyzers.memory.verdict import comparison_findings, device_findings, finding_id, verdict
from analyzers.progress import is_milestone
from analyzers.report import Finding, Report, Verdict, merged, ranked, tool_version
from analyzers.run import Artefact, Kind, discover, selected, unreadable

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
    loaded = store.load_each([[artefact.path] for artefact in inputs], READER, options)
    # One after the other, so that no more than the results of thousands of files are in memory.
    for number, (artefact, columns) in enumerate(zip(inputs, loaded, strict=True), 1):
        if isinstance(columns, WorkbenchError):
            failures.append((artefact, columns))
        else:
            devices += [_with_buffers(device, nccl) for device in _devices_of(Snapshot(columns), artefact)]
        if devices and is_milestone(number, len(inputs)):
            _tell_first_answer(options, number, devices)
    if not devices:
        raise failures[0][1]
    devices = with_differences(devices, inputs, options)
    conclusion, findings = _conclude(devices, [unreadable(artefact, "memory", error) for artefact, error in failures])
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
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
    for device in msgspec.convert(snapshot.columns.meta["devices"], list[Device]):
        oom = device.oom
        if oom and oom.step is None:
            oom = msgspec.structs.replace(oom, step=failing_step)
        yield msgspec.structs.replace(device, path=str(artefact.path), rank=rank, step=step, oom=oom)


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
    yield from (uneven for uneven in uneven_findings(devices) if not leaking_ranks & {*uneven.ranks})


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
    return difference, comparison_findings(difference, second)
