"""Define the structs of the JSON document `workbench.compare/1`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import msgspec

from analyzers import memory, run, store
from analyzers.errors import WorkbenchError
from analyzers.memory import diff
from analyzers.report import Input
from analyzers.run import Artefact, Kind, Run
from analyzers.steps import RankSteps
from analyzers.steps.diff import LossParity, Measure, MeasureChange, PhaseChange, measure_changes
from analyzers.steps.lateness import lateness
from analyzers.steps.loading import load
from analyzers.steps.mapping import UnknownColumn
from analyzers.steps.model import Straggler
from analyzers.steps.report import summary
from analyzers.steps.stragglers import stragglers
from analyzers.steps.table import Steps
from analyzers.traces.diff import TraceDiff
from analyzers.words import duration, duration_ns, percent_change, signed_percent, size, size_change


class Row(msgspec.Struct, frozen=True):
    """A table row that compares one quantity or setting (`what`) of the runs `a` and `b`, as texts.

    `change` is the relative change and `interval` its 95 % interval. Each is empty if it is not known.
    """

    what: str
    a: str
    b: str
    change: str = ""
    interval: str = ""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one run, summed up over its ranks.

    `step_s` is the duration of a step in seconds, and `phases` has the seconds of each phase of a step: medians over
    the ranks. `tokens_per_s` is the speed of one rank (median over the ranks). `timed_steps` is the number of steps of
    the rank with the fewest steps. `memory_bytes` is the peak memory of the rank with the highest peak. `loss` is the
    last loss of the first rank that logged one. A value that was not recorded is None, 0 or empty.
    """

    step_s: float | None = None
    timed_steps: int = 0
    tokens_per_s: float | None = None
    loss: float | None = None
    memory_bytes: int | None = None
    phases: dict[str, float] = {}


class CompareData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of `workbench.compare/1`: the measures of the runs `a` and `b`, and their differences.

    `rows` is a table of all measures, followed by the settings that differ; `config` has only these settings.
    `contrasts` are the changes of the measures with their confidence intervals. `parity` compares the losses step by
    step, and `phases` the durations of the phases of a step. `memory` compares the live memory at the peaks, and
    `traces` the profiler traces. A field is None or empty if one of the runs does not have the files for it.
    """

    a: Measures
    b: Measures
    rows: list[Row]
    config: list[Row]
    contrasts: list[MeasureChange] = []
    parity: LossParity | None = None
    phases: list[PhaseChange] = []
    memory: diff.Diff | None = None
    traces: TraceDiff | None = None


_RUN_KEYS = ("world_size", "device_name", "backend", "mesh", "versions")
"""The keys of `run.json`, besides its configuration, that describe how the run was made."""
_IGNORED = {"job.dump_folder"}
"""Settings that always differ between two runs, such as their folders."""


def setting_rows(a: Mapping[str, object], b: Mapping[str, object]) -> list[Row]:
    """Return a table row for each setting that differs between two runs, sorted by name.

    `a` and `b` are the contents of the runs' run.json; a setting that is missing in one of them is shown as empty.
    """
    first, second = dict(settings(a)), dict(settings(b))
    names = sorted({*first, *second} - _IGNORED)
    return [
        Row(name, str(first.get(name, "")), str(second.get(name, "")))
        for name in names
        if first.get(name) != second.get(name)
    ]


def settings(manifest: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    """Yield (name, value) of each setting in a run.json: the keys in `_RUN_KEYS`, then `section.key` of its config."""
    for name in _RUN_KEYS:
        if name in manifest:
            yield name, manifest[name]
    config = manifest.get("config")
    for section, keys in config.items() if isinstance(config, dict) else ():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            yield f"{section}.{key}", value


Answer = TypeVar("Answer")


@dataclass
class MeasuredRun:
    """One of the two runs: its measures, the files that they come from, and its steps (None if it logged none)."""

    measures: Measures
    inputs: list[Input]
    steps: Steps | None = None
    snapshot_bytes: int | None = None
    """The highest peak in the run's newest memory snapshots; None if it has none."""

    @property
    def stragglers(self) -> list[Straggler]:
        """The ranks that are late, so that the other ranks wait for them."""
        return stragglers(self.steps, lateness(self.steps)) if self.steps else []


def measured_pair(a: Run, b: Run, options: store.Options) -> tuple[MeasuredRun, MeasuredRun]:
    """Return the measures of both runs; the memory of both comes from the same kind of file.

    Memory comes from the snapshots if both runs have some, or else from the step logs: on a CPU these log the resident
    set of the process, which is far more than its tensors. A column that the user named in `options` needs to be in
    only one of the runs, because trainers name their columns differently.

    Raises:
        UnknownColumn: A column that the user named is in neither run.
    """
    unknown: list[UnknownColumn] = []
    first, second = (measured(source, options, unknown) for source in (a, b))
    if missing := next((one for one in unknown if [other.name for other in unknown].count(one.name) > 1), None):
        raise missing
    if first.snapshot_bytes and second.snapshot_bytes:
        for side in (first, second):
            side.measures = msgspec.structs.replace(side.measures, memory_bytes=side.snapshot_bytes)
    return first, second


def steps_of(logs: Sequence[Artefact], options: store.Options, unknown: list[UnknownColumn]) -> Steps:
    """Return the steps in these logs; for each column of `options` that they do not have, add an error to `unknown`."""
    while True:
        try:
            return load(logs, options)
        except UnknownColumn as error:
            # The error names one column, so the logs are loaded again until no wanted column is missing.
            unknown.append(error)
            options = replace(options, columns=tuple(pair for pair in options.columns if pair[1] != error.name))


def measured(source: Run, options: store.Options, unknown: list[UnknownColumn]) -> MeasuredRun:
    """Return the measures of one run; for each column of `options` that it does not have, add an error to `unknown`."""
    result = MeasuredRun(Measures(), [])
    if logs := source.of(*run.TIMED):
        result.steps = answer_or_none(lambda: steps_of(logs, options, unknown))
    if result.steps:
        result.measures, result.inputs = _medians_over(summary(result.steps)), result.steps.inputs
    # The newest: earlier ones may be of the warm-up.
    snapshots = run.newest_step(source.of(Kind.SNAPSHOT))
    if snapshots and (report := answer_or_none(lambda: memory.analyze(snapshots, options))):
        result.snapshot_bytes = max(device.peak_allocated_bytes for device in report.data.devices)
        result.inputs = [*result.inputs, *report.inputs]
    return result


def answer_or_none(question: Callable[[], Answer]) -> Answer | None:
    """Return the result of `question()`, or None if it cannot read its files.

    In this way one unreadable kind of file does not prevent the comparison of other measures.
    """
    try:
        return question()
    except WorkbenchError:
        return None


def _medians_over(ranks: Sequence[RankSteps]) -> Measures:
    """Return the measures of a run, each as the median over its ranks, except for three.

    Memory is the maximum over the ranks, the number of timed steps is the minimum, and the loss comes from the first
    rank that logged one.
    """
    names = {name for rank in ranks for name in rank.phases}
    return Measures(
        step_s=_known_median(rank.median_step_s for rank in ranks),
        timed_steps=min(rank.steps for rank in ranks),
        tokens_per_s=_known_median(rank.tokens_per_s for rank in ranks),
        loss=next((rank.last_loss for rank in ranks if rank.last_loss is not None), None),
        memory_bytes=max(rank.peak_memory_bytes for rank in ranks) or None,
        phases={name: median(rank.phases.get(name, 0.0) for rank in ranks) for name in sorted(names)},
    )


def _known_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def changes_between(a: MeasuredRun, b: MeasuredRun) -> list[MeasureChange]:
    """Return the change of each measure that both runs have.

    A change of memory is exact, without an interval, if both runs left snapshots.
    """
    changes = measure_changes(a.steps, b.steps) if a.steps and b.steps else []
    x, y = a.measures.memory_bytes, b.measures.memory_bytes
    if not (a.snapshot_bytes and b.snapshot_bytes and x and y):
        return changes
    # A snapshot has the peak of every allocation, so there is nothing to resample.
    change = y / x - 1
    exact = MeasureChange(
        measure=Measure.MEMORY, a=x, b=y, change=change, low=change, high=change, samples=1, is_sufficient=True
    )
    return [*(c for c in changes if c.measure is not Measure.MEMORY), exact]


Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """One quantity with its value in each run (None if a run does not have it).

    `write` is a function that formats a value as text. `interval` has the lower and upper 95 % bound of the relative
    change (None: not known). `difference` is a function that formats b - a, for quantities for which the difference is
    more useful than the relative change.
    """

    what: str
    a: float | None
    b: float | None
    write: Format
    interval: tuple[float, float] | None = None
    difference: Format | None = None

    @property
    def change(self) -> str:
        """The relative change as text, or the difference; empty if it is not defined."""
        if self.a is None or self.b is None:
            return ""
        if self.difference:
            return self.difference(self.b - self.a)
        return percent_change(self.a, self.b) if self.a else ""

    @property
    def is_comparable(self) -> bool:
        return self.a is not None and self.b is not None and bool(self.a or self.difference)

    def row(self) -> Row:
        a, b = ("" if value is None else self.write(value) for value in (self.a, self.b))
        return Row(self.what, a, b, self.change, interval_text(*self.interval) if self.interval else "")


def interval_text(low: float, high: float) -> str:
    return f"{signed_percent(low)} to {signed_percent(high)}"


def measure_lines(a: Measures, b: Measures, changes: Sequence[MeasureChange]) -> list[Line]:
    """Return a `Line` for each measured quantity that at least one of the runs has.

    `a` and `b` are the measures of the runs. `changes` has the values and the interval of each measure that can be
    compared; an interval from too few steps is left out.
    """
    by_measure = {change.measure: change for change in changes}

    def line(what: str, measure: Measure, write: Format, ends: tuple[float | None, float | None]) -> Line:
        change = by_measure.get(measure)
        # An interval that is too wide to judge by would read as a result.
        sure = change and change.is_sufficient and not change.is_exact
        return Line(what, *ends, write, (change.low, change.high) if change and sure else None)

    def ends(measure: Measure) -> tuple[float | None, float | None]:
        change = by_measure.get(measure)
        return (change.a, change.b) if change else (None, None)

    step_time = ends(Measure.STEP_TIME) if Measure.STEP_TIME in by_measure else (a.step_s, b.step_s)
    lines = [
        line("median step time", Measure.STEP_TIME, duration, step_time),
        line("mean step time", Measure.STEP_TIME_MEAN, duration, ends(Measure.STEP_TIME_MEAN)),
        line("95th percentile", Measure.STEP_TIME_P95, duration, ends(Measure.STEP_TIME_P95)),
        line("processor time", Measure.PROCESSOR_TIME, duration, ends(Measure.PROCESSOR_TIME)),
        Line("tokens per second", a.tokens_per_s, b.tokens_per_s, "{:.0f}".format),
        Line("last loss", a.loss, b.loss, "{:.4f}".format),
        line("loss of the last common steps", Measure.LOSS, "{:.4f}".format, ends(Measure.LOSS)),
        line("peak memory", Measure.MEMORY, size, (a.memory_bytes, b.memory_bytes)),
        *(Line(f"phase {name}", a.phases.get(name), b.phases.get(name), duration) for name in a.phases | b.phases),
    ]
    return [line for line in lines if line.a is not None or line.b is not None]


def trace_lines(traces: TraceDiff | None) -> list[Line]:
    """Return a `Line` for each quantity of the traced steps; empty if no traces were compared.

    These are the duration of a step, the parts that add up to it, and the memory of each device.
    """
    if traces is None:
        return []
    times = [("traced step", traces.step_a_ns, traces.step_b_ns), *((p.what, p.a_ns, p.b_ns) for p in traces.parts)]
    return [
        *(Line(f"trace: {what}", a, b, duration_ns, difference=_time_change) for what, a, b in times if a or b),
        *(
            Line(f"trace: {m.kind}, {m.where}", m.a_bytes, m.b_bytes, size, difference=size_change)
            for m in traces.memory
            if not m.name  # those with a name are single operators and modules
        ),
    ]


def _time_change(nanoseconds: float) -> str:
    return f"{'-' if nanoseconds < 0 else '+'}{duration_ns(round(abs(nanoseconds)))}"
