"""Run against run: step time, loss, memory, configuration."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import msgspec

from analyzers import memory, run, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.memory import diff
from analyzers.report import (
    Evidence,
    Finding,
    Input,
    Report,
    Severity,
    Status,
    Verdict,
    ranked,
    status_of,
    tool_version,
)
from analyzers.run import Kind, Run
from analyzers.steps import RankSteps, contrast
from analyzers.steps.contrast import STEPS_AT_LEAST, Contrast, Parity, parity
from analyzers.steps.load import load
from analyzers.steps.model import Steps, summary
from analyzers.wording import seconds

Answer = TypeVar("Answer")

SCHEMA = "workbench.compare/1"
LIMITS: Mapping[str, float] = {"step_time": 0.05, "step_time_mean": 0.05, "memory": 0.05, "loss": 0.02}
"""Relative changes for the worse that are worth a finding, where even the lower end of the interval lies above them."""
CAUTIOUS = {"step_time": 0.8, "step_time_mean": 0.7, "step_time_p95": 0.7, "memory": 0.9, "loss": 0.7}
"""How sure a finding is: two runs on one machine differ for reasons that no interval within a run knows."""


class Row(msgspec.Struct, frozen=True):
    """One thing in both runs, as texts; `change` is relative, or empty; `interval`: where it lies with 95 %."""

    what: str
    a: str
    b: str
    change: str = ""
    interval: str = ""


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
    contrasts: list[Contrast] = []
    parity: Parity | None = None


@dataclass
class Side:
    """One of the two runs."""

    measures: Measures
    inputs: list[Input]
    steps: Steps | None = None
    exact_memory: bool = False


def analyze(
    a: Run, b: Run, options: store.Options | None = None, limits: Mapping[str, float] | None = None
) -> Report[CompareData]:
    """What changed from `a` to `b`. `limits` are changes of measures that a gate bears, in place of LIMITS; a measure
    that it names and that cannot be judged is a finding.

    Raises:
        InputError: The two have nothing in common that can be compared.
    """
    options, limits = options or store.Options(), limits or {}
    borne = {**LIMITS, **limits} | ({"step_time_mean": limits["step_time"]} if "step_time" in limits else {})
    first, second = measure(a, options), measure(b, options)
    found = contrasts(first, second)
    config = config_rows(a.manifest(), b.manifest())
    rows = measure_rows(first.measures, second.measures, found)
    if not rows and not config:
        raise InputError(f"{a.root} and {b.root}: nothing to compare", "give two runs, or two artefacts of one kind")
    findings = [*worsened(found, borne, (first.measures, second.measures)), *undecided(found, limits)]
    findings = ranked([*findings, *holders(a, b, options)])
    same = parity(first.steps, second.steps) if first.steps and second.steps else None
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[*first.inputs, *second.inputs],
        verdict=verdict(findings, rows, found, same),
        findings=findings,
        data=CompareData(
            a=first.measures, b=second.measures, rows=[*rows, *config], config=config, contrasts=found, parity=same
        ),
    )


def contrasts(a: Side, b: Side) -> list[Contrast]:
    """The measures of both runs, memory by snapshots where both have them."""
    found = contrast.contrasts(a.steps, b.steps) if a.steps and b.steps else []
    x, y = a.measures.memory_bytes, b.measures.memory_bytes
    if not (a.exact_memory and b.exact_memory and x and y):
        return found
    change = y / x - 1
    exact = Contrast(measure="memory", a=x, b=y, change=change, low=change, high=change, samples=1, enough=True)
    return [*(c for c in found if c.measure != "memory"), exact]


def holders(a: Run, b: Run, options: store.Options) -> list[Finding]:
    """Who holds more or less at the peak, where both runs left snapshots."""
    before, after = (run.newest_step(found.of(Kind.SNAPSHOT)) for found in (a, b))
    if not before or not after:
        return []
    return attempt(lambda: diff.compare(before, after, options)) or []


def measure(found: Run, options: store.Options) -> Side:
    """The numbers of a run, and the files they come from."""
    side = Side(Measures(), [])
    if logs := found.of(*run.TIMED):
        side.steps = attempt(lambda: load(logs, options))
    if side.steps:
        side.measures, side.inputs = timed(summary(side.steps)), side.steps.inputs
    snapshots = run.newest_step(found.of(Kind.SNAPSHOT))
    if snapshots and (held := attempt(lambda: memory.analyze(snapshots, options))):
        peak = max(device.peak_allocated_bytes for device in held.data.devices)
        side.measures = msgspec.structs.replace(side.measures, memory_bytes=peak)
        side.inputs, side.exact_memory = [*side.inputs, *held.inputs], True
    return side


def attempt(question: Callable[[], Answer]) -> Answer | None:
    """An answer, None from what cannot give one: the other measures count all the same."""
    try:
        return question()
    except WorkbenchError:
        return None


def timed(ranks: Sequence[RankSteps]) -> Measures:
    """Medians over ranks."""
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


def measure_rows(a: Measures, b: Measures, found: Sequence[Contrast]) -> list[Row]:
    known = {c.measure: f"{c.low:+.1%} to {c.high:+.1%}" for c in found if c.enough}
    by_name = {c.measure: c for c in found}
    names = ("step_time", "step_time_mean", "step_time_p95", "loss")
    pace, mean, p95, last = (by_name.get(name) for name in names)
    rows = [
        row("step time", (pace.a, pace.b) if pace else (a.step_s, b.step_s), seconds, known.get("step_time")),
        row("mean step time", (mean.a, mean.b), seconds, known.get("step_time_mean")) if mean else None,
        row("95th percentile", (p95.a, p95.b), seconds, known.get("step_time_p95")) if p95 else None,
        row("tokens a second", (a.tokens_per_s, b.tokens_per_s), "{:.0f}".format),
        row("last loss", (a.loss, b.loss), "{:.4f}".format),
        row("loss of the last common steps", (last.a, last.b), "{:.4f}".format, known.get("loss")) if last else None,
        row("peak memory", (a.memory_bytes, b.memory_bytes), mebibytes, known.get("memory")),
        *(row(f"phase {name}", (a.phases.get(name), b.phases.get(name)), seconds) for name in a.phases | b.phases),
    ]
    return [line for line in rows if line]


def row(what: str, ends: tuple[float | None, float | None], text: Any, interval: str | None = None) -> Row | None:
    """A line on what at least one run knows."""
    a, b = ends
    if a is None and b is None:
        return None
    change = f"{b / a - 1:+.1%}" if a and b is not None else ""
    return Row(what, "" if a is None else text(a), "" if b is None else text(b), change, interval or "")


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


def worsened(found: Sequence[Contrast], limits: Mapping[str, float], sides: tuple[Measures, Measures]) -> list[Finding]:
    """The measures that surely changed for the worse by more than their limit."""
    worse = [c for c in found if c.enough and c.measure in limits and c.low > limits[c.measure]]
    if any(c.measure == "step_time" for c in worse):
        worse = [c for c in worse if c.measure != "step_time_mean"]
    return [regression(c, limits[c.measure], moved(*sides) if "step_time" in c.measure else []) for c in worse]


def regression(found: Contrast, limit: float, evidence: list[Evidence]) -> Finding:
    return Finding(
        id=f"compare.{found.measure}",
        severity=Severity.WARNING,
        title=f"{name_of(found)} is {found.change:.1%} higher",
        why=f"from {found.a:.6g} to {found.b:.6g}; with 95 % it is {found.low:+.1%} to {found.high:+.1%} by"
        f" {found.samples} steps, and up to {limit:.1%} is borne",
        next="look at the phases and settings that differ below; where others use the machine, run both again",
        evidence=evidence,
        confidence=CAUTIOUS[found.measure],
    )


def moved(a: Measures, b: Measures) -> list[Evidence]:
    """The phases that grew most."""
    more = {name: seconds_b - a.phases.get(name, 0.0) for name, seconds_b in b.phases.items()}
    most = sorted(more, key=lambda name: -more[name])[:3]
    return [Evidence(text=f"{name} takes {seconds(more[name])} more a step") for name in most if more[name] > 0]


def undecided(found: Sequence[Contrast], gated: Mapping[str, float]) -> list[Finding]:
    """What a gate asks for and these runs cannot answer is no pass."""
    known = {c.measure: c for c in found}
    lacking = [name for name in gated if name not in known or not known[name].enough]
    return [
        Finding(
            id=f"compare.{name}_undecided",
            severity=Severity.WARNING,
            title=f"{name.replace('_', ' ')} cannot be judged: {too_few(known.get(name))}",
            why="a gate that cannot be judged is not passed",
            next=f"log at least {STEPS_AT_LEAST} plain steps in both runs",
            confidence=1.0,
        )
        for name in lacking
    ]


def too_few(found: Contrast | None) -> str:
    if found is None:
        return "the runs do not both tell it"
    if found.enough:
        return f"{found.samples} steps as uneven as these would allow {found.low:+.1%} too"
    return f"{found.samples} steps are not enough evidence"


def name_of(found: Contrast) -> str:
    return NAMES.get(found.measure, found.measure.replace("_", " "))


NAMES = {
    "step_time_mean": "mean step time",
    "step_time_p95": "the 95th percentile of the step time",
    "memory": "peak memory",
}


def verdict(findings: list[Finding], rows: list[Row], found: Sequence[Contrast], same: Parity | None) -> Verdict:
    open_ones = [c for c in found if is_open(c)]
    missing = [f"{name_of(c)}: {too_few(c)}" for c in open_ones]
    if findings:
        text, sure = "; ".join(f.title for f in findings), findings[0].confidence
        return Verdict(status=status_of(findings), kind="regression", sentence=text, confidence=sure, missing=missing)
    shared = [line for line in rows if line.change]
    if open_ones or not shared:
        told = [f"{name_of(c)} {c.change:+.1%}, but {too_few(c)}" for c in open_ones]
        text = "; ".join(told) or "the runs have no measurement in common"
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=text, confidence=0.2, missing=missing)
    text = ", ".join([*(f"{line.what} {line.change}" for line in shared[:3]), *parity_text(same)])
    return Verdict(status=Status.OK, kind="healthy", sentence=text, confidence=0.8, missing=missing)


def is_open(found: Contrast) -> bool:
    """Whether a measure may have become worse by more than its limit, and may not have."""
    limit = LIMITS.get(found.measure)
    if limit is None or found.measure == "step_time_mean":
        return False
    if found.enough:
        return found.change > limit >= found.low
    return found.measure == "step_time" or abs(found.change) > limit


def parity_text(same: Parity | None) -> list[str]:
    """How far the losses agree, where that is worth a word."""
    if same is None:
        return []
    if same.identical:
        return [f"the losses of all {same.steps} common steps are identical"]
    return [f"the losses part from step {same.apart_from} on"] if same.apart_from is not None else []
