"""Compute the measures of one run, such as its step time and peak memory, and list the files that they come from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import msgspec

from analyzers import memory, run, store
from analyzers.compare.model import Measures
from analyzers.errors import WorkbenchError
from analyzers.report import Input
from analyzers.run import Artefact, Kind, Run
from analyzers.steps import RankSteps
from analyzers.steps.answers.lateness import lateness
from analyzers.steps.answers.stragglers import stragglers
from analyzers.steps.answers.summary import summary
from analyzers.steps.diff.measures import Measure, MeasureChange, measure_changes
from analyzers.steps.loading import load
from analyzers.steps.mapping.other_logs import UnknownColumn
from analyzers.steps.model import Straggler
from analyzers.steps.table import Steps

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
    """Return the median of the values that are not None; None if all are."""
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
