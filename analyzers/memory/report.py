"""Memory snapshots -> `Report[MemoryData]`: what filled the memory, when, from which line."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from analyzers import store
from analyzers.errors import InputError, WorkbenchError
from analyzers.memory.findings import findings_of, largest, leak_finding, merged
from analyzers.memory.leaks import growing_over_snapshots
from analyzers.memory.model import Device, MemoryData, Oom
from analyzers.memory.ranks import uneven
from analyzers.memory.stacks import place
from analyzers.memory.text import listed, ranks_of, share, size
from analyzers.report import Evidence, Finding, Input, Report, Severity, Verdict, ranked, status_of, tool_version
from analyzers.run import Artefact

SCHEMA = "workbench.memory/1"
READER = "analyzers.memory.digest"
CLASSES = ("oom", "leak", "fragmentation", "near_limit")


def analyze(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Report[MemoryData]:
    """What the snapshots say, all together. A file that cannot be read becomes a finding.

    Raises:
        InputError: None of them can be read, or none is of the chosen rank and step.
    """
    options = options or store.Options()
    chosen = selected(artefacts, options)
    devices, findings = [], []
    loaded = store.load_many([[artefact.path] for artefact in chosen], READER, options)
    for artefact, columns in zip(chosen, loaded, strict=True):
        if isinstance(columns, WorkbenchError):
            findings.append(unreadable(artefact, columns))
        else:
            answers = msgspec.convert(columns.meta["devices"], list[Device])
            devices += [placed(device, artefact, columns.meta["ours"]) for device in answers]
    if not devices:
        raise next(error for error in loaded if isinstance(error, WorkbenchError))
    findings += [finding for device in devices for finding in findings_of(device)] + leaks_over_snapshots(devices)
    findings += uneven(devices)
    findings = ranked(merged(findings))
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[Input(str(a.path), a.kind, a.rank, a.step, a.bytes) for a in chosen],
        verdict=verdict(devices, findings),
        findings=findings,
        data=MemoryData(devices),
    )


def selected(artefacts: Sequence[Artefact], options: store.Options) -> list[Artefact]:
    """The artefacts of the chosen rank and step; those whose name tells neither always belong."""
    chosen = [
        artefact
        for artefact in artefacts
        if options.rank in (None, artefact.rank) and options.step in (None, artefact.step)
    ]
    if not chosen:
        raise InputError("no memory snapshot of this rank and step", "leave out --rank or --step to see what there is")
    return chosen


def placed(device: Device, artefact: Artefact, ours: dict[str, Any]) -> Device:
    """The answers about a device with what only the file's place tells: path, rank, step."""
    step = ours.get("step", artefact.step)
    oom = device.oom
    if oom and oom.step is None and step is not None:
        after = artefact.exit or "step" in ours  # then `step` is the last finished one
        oom = msgspec.structs.replace(oom, step=step + after)
    rank = ours.get("rank", artefact.rank)
    return msgspec.structs.replace(device, path=str(artefact.path), rank=rank, step=step, oom=oom)


def unreadable(artefact: Artefact, error: WorkbenchError) -> Finding:
    return Finding(
        id="memory.unreadable",
        severity=Severity.WARNING,
        title="A snapshot could not be read",
        why=error.message,
        next=error.hint,
        ranks=[] if artefact.rank is None else [artefact.rank],
        step=artefact.step,
        evidence=[Evidence(text=error.message, source=str(artefact.path))],
        confidence=1.0,
    )


def leaks_over_snapshots(devices: Sequence[Device]) -> list[Finding]:
    """Leaks that show only between a device's snapshots at several steps; one taken in mid-step (OOM) is left out."""

    def series(device: Device) -> tuple[int, int]:
        return (-1 if device.rank is None else device.rank, device.device)

    found = []
    settled = sorted((d for d in devices if not d.oom), key=lambda d: (series(d), d.step or 0))
    for _, same in groupby(settled, key=series):
        ordered = list(same)
        if not any(d.growing for d in ordered) and (growth := growing_over_snapshots(ordered)):
            found.append(leak_finding(ordered[-1], [growth]))
    return found


def verdict(devices: Sequence[Device], findings: Sequence[Finding]) -> Verdict:
    """The first of oom, leak, fragmentation and near limit that was found, else healthy or unknown."""
    present = {finding.id: finding for finding in findings}
    kind = next((kind for kind in CLASSES if f"memory.{kind}" in present), None)
    missing = lacking(devices)
    if kind is None:
        return quiet(devices, findings, missing)
    found = present[f"memory.{kind}"]
    sentence = oom_sentence(devices, present) if kind == "oom" else f"{listed(found.ranks)}: {lower(found.title)}"
    return Verdict(
        status=status_of(findings),
        kind=kind,
        ranks=found.ranks,
        sentence=sentence,
        confidence=found.confidence,
        missing=missing,
    )


def quiet(devices: Sequence[Device], findings: Sequence[Finding], missing: list[str]) -> Verdict:
    fullest = max(devices, key=lambda device: device.peak_allocated_bytes)
    known = any(device.entries or device.reserved_bytes for device in devices)
    if not known:
        sentence = "the snapshot is empty: memory history was not being recorded"
    else:
        kind, held = largest(fullest.categories)
        peak = fullest.peak_allocated_bytes
        sentence = (
            f"nothing failed: {listed(ranks_of(fullest))} peaked at {size(peak)},"
            f" of which {kind.replace('_', ' ')} hold {share(held, peak)}"
        )
    return Verdict(
        status=status_of(findings),
        kind="healthy" if known else "unknown",
        sentence=sentence,
        confidence=max(0.2, 0.9 - 0.2 * len(missing)) if known else 0.0,
        missing=missing,
    )


def oom_sentence(devices: Sequence[Device], present: dict[str, Finding]) -> str:
    """Who, when, where, how much, and what held the rest."""
    ranks = present["memory.oom"].ranks
    oom = next(device.oom for device in devices if device.oom)
    kind, held = largest(oom.categories)
    return (
        f"{listed(ranks)} ran out of memory{when_and_where(oom)}: it asked for {size(oom.requested_bytes)}"
        f" with {size(oom.device_free_bytes)} left; {kind.replace('_', ' ')} hold"
        f" {share(held, oom.allocated_bytes)} of {size(oom.allocated_bytes)}"
        + (f"; {lower(present['memory.leak'].title)}" if "memory.leak" in present else "")
    )


def when_and_where(oom: Oom) -> str:
    step = "" if oom.step is None else f" at step {oom.step}"
    return step + (f" while computing {place(oom.frames[0])}" if oom.frames else "")


def lower(title: str) -> str:
    return title[:1].lower() + title[1:]


def lacking(devices: Iterable[Device]) -> list[str]:
    """Evidence that would have made the verdict firmer."""
    devices = list(devices)
    wanted = {
        "a history of allocations (the snapshot has none)": any(not d.entries for d in devices),
        "exact categories (guessed from stacks and lifetimes)": any(not d.categories_exact for d in devices),
        "the memory limit of the device": not any(d.limit_bytes or d.oom for d in devices),
    }
    return [what for what, lacks in wanted.items() if lacks]
