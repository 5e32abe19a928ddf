"""The whole run at a glance: how each rank stands, and which files tell of it."""

from collections.abc import Sequence
from typing import Any

from analyzers.report import Finding, Report
from analyzers.run import Artefact, Run
from analyzers.words import duration, rank_ranges, size
from workbench.ask import parts
from workbench.colours import SEVERITY_SIGNS
from workbench.present.table import Table, table

RANKS_AT_MOST = 2000
FOLDED_AT_MOST = 200


def ranks(report: Report[Any]) -> Table:
    """A row a rank: what each room says of it; those that findings name come first."""
    rooms = parts(report)
    steps = {one.rank: one for one in rooms["steps"].ranks} if "steps" in rooms else {}
    peaks = peaks_of(rooms["memory"].devices) if "memory" in rooms else {}
    waits = {one.rank: one.waits_for for one in rooms["hang"].waits} if "hang" in rooms else {}
    named = named_by(report.findings)
    known = {one.rank for one in report.inputs if one.rank is not None} | {*steps, *peaks, *waits, *named}
    rows = (
        (
            rank,
            steps[rank].last_step if rank in steps else None,
            duration(steps[rank].median_step_s) if rank in steps else None,
            size(peaks[rank]) if rank in peaks else None,
            rank_ranges(waits[rank]) or "nobody" if rank in waits else None,
            "  ".join(told for _, told in named.get(rank, [])) or None,
        )
        for rank in sorted(known, key=lambda rank: (named[rank][0][0] if rank in named else len(report.findings), rank))
    )
    heads = "rank> | last step> | median step> | peak memory> | waits for | findings"
    return table("Ranks", heads, rows, RANKS_AT_MOST)


def peaks_of(devices: Sequence[Any]) -> dict[int, int]:
    """Bytes at the highest peak of each rank's snapshots."""
    peaks: dict[int, int] = {}
    for device in devices:
        if device.rank is not None:
            peaks[device.rank] = max(peaks.get(device.rank, 0), device.peak_allocated_bytes)
    return peaks


def named_by(findings: Sequence[Finding]) -> dict[int, list[tuple[int, str]]]:
    """The place and the id of the findings that name a rank, the gravest first, as they are ordered."""
    named: dict[int, list[tuple[int, str]]] = {}
    for place, finding in enumerate(findings):
        for rank in finding.ranks:
            named.setdefault(rank, []).append((place, f"{SEVERITY_SIGNS[finding.severity]} {finding.id}"))
    return named


def artefacts(runs: Sequence[Run]) -> Table:
    """The files of the runs, those of one kind and step in one row."""
    alike: dict[tuple[str, int, bool], list[Artefact]] = {}
    for one in (artefact for run in runs for artefact in run.artefacts):
        alike.setdefault((one.kind, -1 if one.step is None else one.step, one.exit), []).append(one)
    rows = (
        (
            kind.replace("_", " "),
            None if step < 0 else f"{step} (exit)" if of_exit else step,
            rank_ranges(one.rank for one in files if one.rank is not None) or None,
            len(files),
            size(sum(one.bytes for one in files)),
            below(files[0], runs),
        )
        for (kind, step, of_exit), files in sorted(alike.items())
    )
    return table("Artefacts", "kind | step> | ranks | files> | size> | the first of them", rows, FOLDED_AT_MOST)


def below(one: Artefact, runs: Sequence[Run]) -> str:
    """The path inside its run; whole where several are shown."""
    only = runs[0].root if len(runs) == 1 else None
    return str(one.path.relative_to(only)) if only and one.path.is_relative_to(only) else str(one.path)
