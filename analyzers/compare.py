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
    Status,
    Verdict,
    ranked,
    status_of,
    tool_version,
)
from analyzers.run import Kind, Run
from analyzers.steps import RankSteps
from analyzers.steps.answers.lateness import lateness
from analyzers.steps.answers.stragglers import stragglers
from analyzers.steps.answers.summary import summary
from analyzers.steps.diff import measures
from analyzers.steps.diff.measures import Contrast, Parity, PhaseChange, attribution, parity
from analyzers.steps.findings.regressions import is_open, name_of, too_few, undecided, worsened
from analyzers.steps.loading import load
from analyzers.steps.model import Straggler
from analyzers.steps.table import Steps
from analyzers.traces.diff import diff as trace_diff
from analyzers.traces.diff.diff import TraceDiff, signed
from analyzers.traces.diff.memory import MemoryChange
from analyzers.words import duration_ns, size

Answer = TypeVar("Answer")

SCHEMA = "workbench.compare/1"


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
    phases: list[PhaseChange] = []
    memory: diff.Diff | None = None
    traces: TraceDiff | None = None


@dataclass
class Side:
    """One of the two runs."""

    measures: Measures
    inputs: list[Input]
    steps: Steps | None = None
    snapshot_bytes: int | None = None
    """The peak of its newest snapshots."""

    @property
    def late(self) -> list[Straggler]:
        """Who makes the others wait."""
        return stragglers(self.steps, lateness(self.steps)) if self.steps else []


def analyze(
    a: Run, b: Run, options: store.Options | None = None, limits: Mapping[str, float] | None = None
) -> Report[CompareData]:
    """What changed from `a` to `b`. `limits` are changes of measures that a gate bears, in place of the usual ones; a
    measure that it names and that cannot be judged is a finding.

    Raises:
        InputError: The two have nothing in common that can be compared.
    """
    options, limits = options or store.Options(), limits or {}
    first, second = alike(measure(a, options), measure(b, options))
    found = contrasts(first, second)
    config = config_rows(a.manifest(), b.manifest())
    traced = traces_of(a, b, options)
    rows = [*measure_rows(first.measures, second.measures, found), *trace_rows(traced)]
    if not rows and not config:
        raise InputError(f"{a.root} and {b.root}: nothing to compare", "give two runs, or two artefacts of one kind")
    findings = [*worsened(found, limits, moved(first, second)), *undecided(found, limits)]
    held, grown = holders(a, b, options)
    slower = trace_diff.finding(traced) if traced else None
    findings = ranked([*findings, *grown, *([slower] if slower else [])])
    same = parity(first.steps, second.steps) if first.steps and second.steps else None
    phases = attribution(first.steps, second.steps) if first.steps and second.steps else []
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[*first.inputs, *second.inputs, *trace_inputs(a, b, traced)],
        verdict=verdict(findings, rows, found, same),
        findings=findings,
        data=CompareData(
            a=first.measures,
            b=second.measures,
            rows=[*rows, *config],
            config=config,
            contrasts=found,
            parity=same,
            phases=phases,
            memory=held,
            traces=traced,
        ),
    )


def contrasts(a: Side, b: Side) -> list[Contrast]:
    """The measures of both runs, memory by snapshots where both have them."""
    found = measures.contrasts(a.steps, b.steps) if a.steps and b.steps else []
    x, y = a.measures.memory_bytes, b.measures.memory_bytes
    if not (a.snapshot_bytes and b.snapshot_bytes and x and y):
        return found
    change = y / x - 1
    exact = Contrast(measure="memory", a=x, b=y, change=change, low=change, high=change, samples=1, enough=True)
    return [*(c for c in found if c.measure != "memory"), exact]


def holders(a: Run, b: Run, options: store.Options) -> tuple[diff.Diff | None, list[Finding]]:
    """Who holds more or less at the peak, where both runs left snapshots."""
    before, after = (run.newest_step(found.of(Kind.SNAPSHOT)) for found in (a, b))
    if not before or not after:
        return None, []
    return attempt(lambda: diff.compare(before, after, options)) or (None, [])


def traces_of(a: Run, b: Run, options: store.Options) -> TraceDiff | None:
    """The newest traces of both, where both have some."""
    first, second = (run.newest_step(found.of(Kind.TRACE)) for found in (a, b))
    return attempt(lambda: trace_diff.compare(first, second, options)) if first and second else None


def trace_inputs(a: Run, b: Run, found: TraceDiff | None) -> list[Input]:
    return [one.given() for side in (a, b) for one in run.newest_step(side.of(Kind.TRACE)) if found]


def trace_rows(found: TraceDiff | None) -> list[Row]:
    """A traced step and its parts, whose differences add up to the step's; and what devices held, where traces tell."""
    if found is None:
        return []
    ends = [("traced step", found.step_a_ns, found.step_b_ns), *((p.what, p.a_ns, p.b_ns) for p in found.parts)]
    held = [one for one in found.memory if not one.name]
    return [
        *(Row(f"trace: {what}", duration_ns(a), duration_ns(b), signed(b - a)) for what, a, b in ends if a or b),
        *(Row(f"trace: {m.kind}, {m.where}", size(m.a_bytes), size(m.b_bytes), more(m)) for m in held),
    ]


def more(change: MemoryChange) -> str:
    return f"{'-' if change.change_bytes < 0 else '+'}{size(abs(change.change_bytes))}"


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
        side.inputs, side.snapshot_bytes = [*side.inputs, *held.inputs], peak
    return side


def alike(a: Side, b: Side) -> tuple[Side, Side]:
    """Both with their snapshots' memory, or neither: on a CPU the step log has the resident set, which is far more."""
    if a.snapshot_bytes and b.snapshot_bytes:
        for side in (a, b):
            side.measures = msgspec.structs.replace(side.measures, memory_bytes=side.snapshot_bytes)
    return a, b


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


def moved(a: Side, b: Side) -> list[Evidence]:
    """Who makes the others wait now, and the phases that grew most."""
    before, after = a.measures.phases, b.measures.phases
    more = {name: spent - before.get(name, 0.0) for name, spent in after.items()}
    most = sorted(more, key=lambda name: -more[name])[:3]
    late = {s.rank for s in a.late}
    waits = [f"rank {s.rank} makes the others wait: {s.cause}" for s in b.late if s.rank not in late]
    grown = [f"{name} takes {duration_ns(more[name])} more a step" for name in most if more[name] > 0]
    return [Evidence(text=text) for text in [*waits[:3], *grown]]


def measure_rows(a: Measures, b: Measures, found: Sequence[Contrast]) -> list[Row]:
    known = {c.measure: f"{c.low:+.1%} to {c.high:+.1%}" for c in found if c.enough and c.low < c.high}
    by_name = {c.measure: c for c in found}
    names = ("step_time", "step_time_mean", "step_time_p95", "processor_time", "loss")
    pace, mean, p95, busy, last = (by_name.get(name) for name in names)
    rows = [
        row("step time", (pace.a, pace.b) if pace else (a.step_s, b.step_s), duration_ns, known.get("step_time")),
        row("mean step time", (mean.a, mean.b), duration_ns, known.get("step_time_mean")) if mean else None,
        row("95th percentile", (p95.a, p95.b), duration_ns, known.get("step_time_p95")) if p95 else None,
        row("processor time", (busy.a, busy.b), duration_ns, known.get("processor_time")) if busy else None,
        row("tokens a second", (a.tokens_per_s, b.tokens_per_s), "{:.0f}".format),
        row("last loss", (a.loss, b.loss), "{:.4f}".format),
        row("loss of the last common steps", (last.a, last.b), "{:.4f}".format, known.get("loss")) if last else None,
        row("peak memory", (a.memory_bytes, b.memory_bytes), size, known.get("memory")),
        *(row(f"phase {name}", (a.phases.get(name), b.phases.get(name)), duration_ns) for name in a.phases | b.phases),
    ]
    return [line for line in rows if line]


def row(what: str, ends: tuple[float | None, float | None], text: Any, interval: str | None = None) -> Row | None:
    """A line on what at least one run knows."""
    a, b = ends
    if a is None and b is None:
        return None
    change = f"{b / a - 1:+.1%}" if a and b is not None else ""
    return Row(what, "" if a is None else text(a), "" if b is None else text(b), change, interval or "")


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


def parity_text(same: Parity | None) -> list[str]:
    """How far the losses agree, where that is worth a word."""
    if same is None:
        return []
    if same.identical:
        return [f"the losses of all {same.steps} common steps are identical"]
    return [f"the losses part from step {same.apart_from} on"] if same.apart_from is not None else []
