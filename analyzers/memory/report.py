"""Memory snapshots -> `Report[MemoryData]`: what filled the memory, when, from which line."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Any

import msgspec

from analyzers import store
from analyzers.errors import WorkbenchError
from analyzers.memory.answers.across_ranks import uneven
from analyzers.memory.answers.leaks import growing_over_snapshots
from analyzers.memory.answers.stacks import place
from analyzers.memory.findings.device import findings_of, largest, leak_finding
from analyzers.memory.findings.evidence import listed, ranks_of
from analyzers.memory.loading import READER
from analyzers.memory.model import Device, MemoryData, Oom
from analyzers.report import Finding, Report, Verdict, merged, ranked, status_of, tool_version
from analyzers.run import Artefact, selected, unreadable
from analyzers.words import share, size

SCHEMA = "workbench.memory/1"
NOTABLE = 0.1
CLASSES = ("oom", "leak", "fragmentation", "near_limit")


def analyze(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Report[MemoryData]:
    """What the snapshots say, all together. A file that cannot be read becomes a finding.

    Raises:
        InputError: None of them can be read, or none is of the chosen rank and step.
    """
    options = options or store.Options()
    chosen = selected(artefacts, options.rank, options.step)
    devices, findings = [], []
    loaded = store.load_many([[artefact.path] for artefact in chosen], READER, options)
    for artefact, columns in zip(chosen, loaded, strict=True):
        if isinstance(columns, WorkbenchError):
            findings.append(unreadable(artefact, "memory", columns))
        else:
            answers = msgspec.convert(columns.meta["devices"], list[Device])
            devices += [placed(device, artefact, columns.meta["ours"]) for device in answers]
    if not devices:
        raise next(error for error in loaded if isinstance(error, WorkbenchError))
    grown = leaks(devices)
    leaking = {rank for finding in grown for rank in finding.ranks}
    findings += [finding for device in devices for finding in findings_of(device)] + grown
    findings += [finding for finding in uneven(devices) if not leaking & {*finding.ranks}]  # else the leak is why
    findings = ranked(merged(findings))
    told = verdict(devices, findings)
    findings.sort(key=lambda finding: (-finding.severity.weight, finding.id != f"memory.{told.kind}"))
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[a.given() for a in chosen],
        verdict=told,
        findings=findings,
        data=MemoryData(devices),
    )


def placed(device: Device, artefact: Artefact, ours: dict[str, Any]) -> Device:
    """The answers about a device with what only the file's place tells: path, rank, step."""
    step = ours.get("step", artefact.step)
    oom = device.oom
    if oom and oom.step is None and step is not None:
        after = artefact.exit or "step" in ours  # then `step` is the last finished one
        oom = msgspec.structs.replace(oom, step=step + after)
    rank = ours.get("rank", artefact.rank)
    return msgspec.structs.replace(device, path=str(artefact.path), rank=rank, step=step, oom=oom)


def leaks(devices: Sequence[Device]) -> list[Finding]:
    """What the last snapshot of each device shows to grow, else what grows between its snapshots at several steps.

    Growth that only an earlier snapshot shows has ended, and growth that is a small part of what was held when an
    allocation failed is not why it failed.
    """

    def series(device: Device) -> tuple[int, int]:
        return (-1 if device.rank is None else device.rank, device.device)

    found = []
    for _, same in groupby(sorted(devices, key=lambda d: (series(d), d.step or 0, d.oom is not None)), key=series):
        ordered = list(same)
        # One in mid-step holds what the step's end would have freed; on CPU the ends of some blocks go unseen.
        settled = [d for d in ordered if not (d.oom or d.fragmentation.made_up_segments)]
        last = ordered[-1]
        if last.growing and not (last.oom and last.growing[0].total_bytes < NOTABLE * last.oom.allocated_bytes):
            found.append(leak_finding(last, last.growing))
        elif growth := growing_over_snapshots(settled):
            found.append(leak_finding(settled[-1], [growth]))
    return found


def verdict(devices: Sequence[Device], findings: Sequence[Finding]) -> Verdict:
    """The first of oom, leak, fragmentation and near limit that was found, else healthy or unknown."""
    present = {finding.id: finding for finding in findings}
    kind = next((kind for kind in CLASSES if f"memory.{kind}" in present), None)
    missing = lacking(devices)
    if kind is None:
        return quiet(devices, findings, missing)
    found = present[f"memory.{kind}"]
    whose = subject(devices, found.ranks, found.evidence[0].source if found.evidence else "")
    sentence = oom_sentence(devices, present) if kind == "oom" else f"{whose}: {lower(found.title)}"
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
            f"nothing failed: {subject(devices, ranks_of(fullest), fullest.path)} peaked at {size(peak)},"
            f" {share(held, peak)} of it {kind.replace('_', ' ')}"
        )
    return Verdict(
        status=status_of(findings),
        kind="healthy" if known else "unknown",
        sentence=sentence,
        confidence=max(0.2, 0.9 - 0.2 * len(missing)) if known else 0.0,
        missing=missing,
    )


def subject(devices: Sequence[Device], ranks: Sequence[int], path: str) -> str:
    """Of whom a sentence tells: ranks, else of several files the one."""
    several = len({device.path for device in devices}) > 1
    return PurePath(path).name if path and several and not ranks else listed(ranks)


def oom_sentence(devices: Sequence[Device], present: dict[str, Finding]) -> str:
    """Who, when, where, how much, and what held the rest."""
    ranks = present["memory.oom"].ranks
    path, oom = next((device.path, device.oom) for device in devices if device.oom)
    kind, held = largest(oom.categories)
    leak = present.get("memory.leak")
    return (
        f"{subject(devices, ranks, path)} ran out of memory{when_and_where(oom)}:"
        f" it asked for {size(oom.requested_bytes)} with {size(oom.device_free_bytes)} left;"
        f" {kind.replace('_', ' ')} hold {share(held, oom.allocated_bytes)} of {size(oom.allocated_bytes)}"
        + (f"; {lower(leak.title)}" if leak and set(leak.ranks) & set(ranks) else "")
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
        "exact categories (guessed from stacks and lifetimes)": any(not d.categories_exact for d in devices),
        "the memory limit of the device": not any(d.limit_bytes or d.oom for d in devices),
    }
    told = dict.fromkeys(what for device in devices for what in device.lacking)
    return [*told, *(what for what, lacks in wanted.items() if lacks)]
