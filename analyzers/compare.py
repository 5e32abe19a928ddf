"""Run against run: step time, loss, memory, configuration."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import msgspec

from analyzers import memory, run, steps, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.memory import diff
from analyzers.report import Finding, Input, Report, Severity, Status, Verdict, ranked, status_of, tool_version
from analyzers.run import Kind, Run
from analyzers.wording import seconds

SCHEMA = "workbench.compare/1"
STEP_TIME, MEMORY, LOSS = 0.05, 0.05, 0.02
"""Relative changes that are worth a finding."""
STEPS_AT_LEAST = 20
"""Timed steps that a verdict on step time needs."""


class Row(msgspec.Struct, frozen=True):
    """One thing in both runs, as texts; `change` is relative, or empty."""

    what: str
    a: str
    b: str
    change: str = ""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run: seconds, bytes, tokens a second of one rank."""

    step_s: float | None = None
    timed_steps: int = 0
    tokens_per_s: float | None = None
    loss: float | None = None
    memory_bytes: int | None = None
    phases: dict[str, float] = {}


class CompareData(msgspec.Struct, frozen=True, kw_only=True):
    a: Measures
    b: Measures
    rows: list[Row]
    config: list[Row]


def analyze(a: Run, b: Run, options: store.Options | None = None) -> Report[CompareData]:
    """What changed from `a` to `b`.

    Raises:
        InputError: The two have nothing in common that can be compared.
    """
    options = options or store.Options()
    (first, inputs_a), (second, inputs_b) = measure(a, options), measure(b, options)
    config = config_rows(a.manifest(), b.manifest())
    rows = measure_rows(first, second)
    if not rows and not config:
        raise InputError(f"{a.root} and {b.root}: nothing to compare", "give two runs, or two artefacts of one kind")
    findings = ranked([*changes(first, second), *holders(a, b, options)])
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[*inputs_a, *inputs_b],
        verdict=verdict(findings, rows, first, second),
        findings=findings,
        data=CompareData(a=first, b=second, rows=[*rows, *config], config=config),
    )


def holders(a: Run, b: Run, options: store.Options) -> list[Finding]:
    """Who holds more or less at the peak, where both runs left snapshots."""
    before, after = (run.newest_step(found.of(Kind.SNAPSHOT)) for found in (a, b))
    if not before or not after:
        return []
    try:
        return diff.compare(before, after, options)
    except WorkbenchError:
        return []


def measure(found: Run, options: store.Options) -> tuple[Measures, list[Input]]:
    """The numbers of a run, and the files they come from."""
    measures, inputs = Measures(), []
    if logs := found.of(Kind.STEPS, Kind.STRUCTURED_LOG):
        report = steps.analyze(logs, options)
        measures, inputs = timed(report.data), report.inputs
    if snapshots := run.newest_step(found.of(Kind.SNAPSHOT)):
        try:
            held = memory.analyze(snapshots, options)
        except WorkbenchError:
            return measures, inputs
        peak = max(device.peak_allocated_bytes for device in held.data.devices)
        measures, inputs = msgspec.structs.replace(measures, memory_bytes=peak), [*inputs, *held.inputs]
    return measures, inputs


def timed(data: steps.StepsData) -> Measures:
    """Medians over ranks."""
    ranks = data.ranks
    names = {name for rank in ranks for name in rank.phases}
    return Measures(
        step_s=middle(rank.median_step_s for rank in ranks),
        timed_steps=min(rank.steps for rank in ranks),
        tokens_per_s=middle(rank.tokens_per_s for rank in ranks),
        loss=next((rank.last_loss for rank in ranks if rank.last_loss is not None), None),
        memory_bytes=max(rank.peak_memory_bytes for rank in ranks) or None,
        phases={name: median(rank.phases.get(name, 0.0) for rank in ranks) for name in sorted(names)},
    )


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def measure_rows(a: Measures, b: Measures) -> list[Row]:
    rows = [
        row("step time", a.step_s, b.step_s, seconds),
        row("tokens a second", a.tokens_per_s, b.tokens_per_s, "{:.0f}".format),
        row("last loss", a.loss, b.loss, "{:.4f}".format),
        row("peak memory", a.memory_bytes, b.memory_bytes, mebibytes),
        *(row(f"phase {name}", a.phases.get(name), b.phases.get(name), seconds) for name in a.phases | b.phases),
    ]
    return [found for found in rows if found]


def row(what: str, a: float | None, b: float | None, text: Any) -> Row | None:
    """A line on what at least one run knows."""
    if a is None and b is None:
        return None
    change = f"{b / a - 1:+.1%}" if a and b is not None else ""
    return Row(what, "" if a is None else text(a), "" if b is None else text(b), change)


def mebibytes(count: float) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def config_rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Row]:
    """The settings that differ; where the run was written to does not count."""
    left, right = dict(settings(a)), dict(settings(b))
    names = sorted({*left, *right} - {"job.dump_folder"})
    return [
        Row(name, str(left.get(name, "")), str(right.get(name, "")))
        for name in names
        if left.get(name) != right.get(name)
    ]


def settings(manifest: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """(section.key, value), and what the run was made with."""
    for name in ("world_size", "device_name", "backend", "mesh", "versions"):
        if name in manifest:
            yield name, manifest[name]
    config = manifest.get("config")
    for section, keys in config.items() if isinstance(config, dict) else ():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            yield f"{section}.{key}", value


def changes(a: Measures, b: Measures) -> list[Finding]:
    """The changes for the worse."""
    enough = min(a.timed_steps, b.timed_steps) >= STEPS_AT_LEAST
    found = [
        worse("step_time", "step time", a.step_s, b.step_s, STEP_TIME, 0.8 if enough else 0.4),
        worse("memory", "peak memory", a.memory_bytes, b.memory_bytes, MEMORY, 0.9),
        worse("loss", "last loss", a.loss, b.loss, LOSS, 0.6),
    ]
    return [finding for finding in found if finding]


def worse(name: str, what: str, a: float | None, b: float | None, limit: float, confidence: float) -> Finding | None:
    if not a or b is None or b <= a * (1 + limit):
        return None
    return Finding(
        id=f"compare.{name}",
        severity=Severity.WARNING,
        title=f"{what} is {b / a - 1:.1%} higher",
        why=f"from {a:.6g} to {b:.6g}; up to {limit:.0%} is taken for noise",
        next="look at the phases and settings that differ below",
        confidence=confidence,
    )


def verdict(findings: list[Finding], rows: list[Row], a: Measures, b: Measures) -> Verdict:
    shared = [line for line in rows if line.change]
    few = min(a.timed_steps, b.timed_steps) < STEPS_AT_LEAST
    missing = [f"fewer than {STEPS_AT_LEAST} timed steps"] if few and a.step_s and b.step_s else []
    if findings:
        text = "; ".join(f.title for f in findings)
        sure = findings[0].confidence
        return Verdict(status=status_of(findings), kind="regression", sentence=text, confidence=sure, missing=missing)
    if not shared:
        text = "the runs have no measurement in common"
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=text, confidence=0.2, missing=missing)
    text = ", ".join(f"{line.what} {line.change}" for line in shared[:3])
    return Verdict(status=Status.OK, kind="healthy", sentence=text, confidence=0.4 if few else 0.8, missing=missing)
