"""The entry point for comparisons: `analyze` returns a report of what changed from one run to another."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from os import PathLike

from analyzers import run, store
from analyzers.compare.model import (
    CompareData,
    Line,
    MeasuredRun,
    answer_or_none,
    changes_between,
    interval_text,
    measure_lines,
    measured_pair,
    setting_rows,
    trace_lines,
)
from analyzers.errors import InputError
from analyzers.memory import Diff
from analyzers.memory import compare as compare_memory
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
)
from analyzers.run import Kind, Run
from analyzers.steps.diff import (
    ALLOWED_CHANGES,
    STEPS_AT_LEAST,
    LossParity,
    Measure,
    MeasureChange,
    PhaseChange,
    loss_parity,
    phase_changes,
)
from analyzers.steps.losses import Quantity, first_nonfinite
from analyzers.steps.table import CAUSE_NAMES, Steps
from analyzers.traces import diff
from analyzers.traces.diff import TraceDiff, step_change_finding
from analyzers.words import (
    AS_MULTIPLE_FROM,
    duration,
    joined_sentences,
    multiple,
    percent,
    quantity,
    signed_percent,
    size,
)

CONFIDENCE = {Measure.STEP_TIME: 0.8, Measure.PROCESSOR_TIME: 0.8, Measure.MEMORY: 0.9}
_OTHER_CONFIDENCE = 0.7
"""The confidence of findings on measures that `CONFIDENCE` does not list.

It is below 1, because runs also differ for reasons that no confidence interval within one run shows.
"""
_NAMED_AT_MOST = 3
_NOTABLE_SHARE = 0.01
"""A phase is evidence for longer steps if it grew by more than this share of the growth of all phases."""
_MEASURE_NAMES: Mapping[Measure, str] = {
    Measure.STEP_TIME: "median step time",
    Measure.STEP_TIME_MEAN: "mean step time",
    Measure.STEP_TIME_P95: "the 95th percentile of the step time",
    Measure.PROCESSOR_TIME: "processor time",
    Measure.MEMORY: "peak memory",
    Measure.LOSS: "loss",
}


_NEXT_FOR_TIME = "look at the phases and the settings that changed most; if other jobs used the machine, run both again"
NEXT: dict[Measure, str] = {
    Measure.MEMORY: "look at the settings that changed, and compare a memory snapshot of each run (`workbench compare A"
    " B` on two snapshots), which names the modules and lines whose memory grew",
    Measure.LOSS: "look at the settings and the data that changed; if none changed, `workbench bisect A B` finds the"
    " first tensor that differs between two runs with recorded values (debug.record_values)",
}


class Doubt(StrEnum):
    """The reason why it cannot be judged whether a measure became worse."""

    NOT_IN_BOTH = "not in both"
    FEW_STEPS = "few steps"
    WIDE_INTERVAL = "wide interval"


_COMPARED_MEMORY = (
    "look at the settings that changed, and at the modules and lines whose memory grew, in the tables of this report"
)
"""The advice on peak memory, in place of that in `NEXT`, if both runs have memory snapshots."""


def regressions(
    changes: Sequence[MeasureChange], gate: Mapping[str, float], causes: list[Evidence], memory: object = None
) -> list[Finding]:
    """Return a finding for each measure that certainly grew by more than the allowed increase.

    It is certain if the lower end of the 95 % interval of the relative change is above the allowed increase. `gate`
    maps measures to allowed increases that replace the defaults; its `step_time` also applies to the mean step time.
    `causes` are added as evidence to findings about step time. If the median step time is a finding, the mean is not
    reported again. `memory` is the difference between memory snapshots of both runs (None: none was computed).
    """
    allowed = dict(ALLOWED_CHANGES) | dict(gate)
    if Measure.STEP_TIME in gate:
        # A gate of `step_time` would otherwise not see a few very long steps, which leave the median as it is.
        allowed[Measure.STEP_TIME_MEAN] = gate[Measure.STEP_TIME]
    worse = [c for c in changes if c.is_sufficient and c.measure in allowed and c.low > allowed[c.measure]]
    if any(c.measure is Measure.STEP_TIME for c in worse):
        # The mean follows the median; two findings on one cause would repeat each other.
        worse = [c for c in worse if c.measure is not Measure.STEP_TIME_MEAN]
    causes = [*_waiting_fact(changes), *causes]
    of_time = (Measure.STEP_TIME, Measure.STEP_TIME_MEAN, Measure.STEP_TIME_P95)
    next_of = NEXT | {Measure.MEMORY: _COMPARED_MEMORY} if memory else NEXT
    return [
        regression(
            c, allowed[c.measure], causes if c.measure in of_time else [], next_of.get(c.measure, _NEXT_FOR_TIME)
        )
        for c in worse
    ]


def nonfinite_loss(a: Steps | None, b: Steps | None) -> list[Finding]:
    """Return a list with a finding if the loss or gradient norm stays NaN or infinite in run `b` but not in run `a`.

    The list is empty otherwise.
    """
    before, after = (first_nonfinite(steps) if steps else None for steps in (a, b))
    if after is None or before is not None or after.finite_from is not None:
        return []
    name = "loss" if after.quantity is Quantity.LOSS else "gradient norm"
    return [
        Finding(
            id="compare.nonfinite_loss",
            severity=Severity.ERROR,
            title=f"the {name} of run B is NaN or infinite from step {after.step} on",
            why=f"in run A the {name} is finite at every step",
            next=f"compare the settings of the two runs and their data of step {after.step}; then resume run B from a"
            f" checkpoint before step {after.step}",
            ranks=after.ranks,
            step=after.step,
            confidence=1.0,
        )
    ]


def _waiting_fact(changes: Sequence[MeasureChange]) -> list[Evidence]:
    """Return a list with evidence that longer steps are due to waiting, not work: processor time per step did not grow.

    The list is empty if it grew, or if it is not among `changes`, the measures that both runs have.
    """
    allowed = ALLOWED_CHANGES[Measure.STEP_TIME]
    same = [c for c in changes if c.measure is Measure.PROCESSOR_TIME and c.is_sufficient and c.change < allowed]
    return [
        Evidence(
            text=f"the extra time is waiting, not work: processor time per step changed by {signed_percent(c.change)}"
        )
        for c in same
    ]


def regression(change: MeasureChange, allowed: float, evidence: list[Evidence], next_step: str) -> Finding:
    """Return the finding that one measure grew by more than `allowed`, a relative increase (0.05 is 5 %).

    `change` has the measure with its values in both runs. `evidence` and the advice `next_step` go into the finding.
    """
    return Finding(
        id=f"compare.{change.measure}",
        severity=Severity.WARNING,
        title=f"{_MEASURE_NAMES[change.measure]} of run B is {_growth_text(change.change)} that of run A",
        why=f"It is {_value_text(change.measure, change.a)} in run A and"
        f" {_value_text(change.measure, change.b)} in run B"
        f" ({_certainty(change)}); an increase of {percent(allowed)} is allowed.",
        next=next_step,
        evidence=evidence,
        confidence=CONFIDENCE.get(change.measure, _OTHER_CONFIDENCE),
    )


def _growth_text(change: float) -> str:
    return multiple(change) if change >= AS_MULTIPLE_FROM else f"{percent(change)} higher than"


def _certainty(change: MeasureChange) -> str:
    """Return the relative change and its certainty, such as `+140 %; 95 % interval +83 % to +175 %, 9 steps`.

    A value that was read once, such as a peak of memory, has no interval and is called exact.
    """
    if change.is_exact:
        return f"{signed_percent(change.change)}, exact"
    lower, upper = signed_percent(change.low), signed_percent(change.high)
    interval = f"interval {interval_text(change.low, change.high)}" if lower != upper else f"interval about {upper}"
    return f"{signed_percent(change.change)}; 95 % {interval}, from {quantity(change.samples, 'step')}"


def _value_text(measure: Measure, value: float) -> str:
    if measure is Measure.MEMORY:
        return size(value)
    return f"{value:.4f}" if measure is Measure.LOSS else duration(value)


def undecided(changes: Sequence[MeasureChange], gate: Mapping[str, float]) -> list[Finding]:
    """Return a finding for each measure that has a limit in `gate` but too little data in the two runs to be judged.

    `gate` maps the names of measures to the relative increase that the user allows; `changes` are the measures that
    both runs have. Without evidence a limit does not count as met, so a missing measure is also reported.

    Raises:
        ValueError: The gate names an unknown measure.
    """
    known = {change.measure: change for change in changes}
    names = [Measure(name) for name in gate if name not in known or not known[Measure(name)].is_sufficient]
    return [
        Finding(
            id=f"compare.{name}_undecided",
            severity=Severity.WARNING,
            title=f"{_MEASURE_NAMES[name]} cannot be judged: {_doubt_text(known.get(name))}",
            why="`--fail-on` names this measure, and passes only if the measure was compared",
            next=_log_more(known.get(name)),
            confidence=1.0,
        )
        for name in names
    ]


def _log_more(change: MeasureChange | None) -> str:
    """Return the advice on a measure that cannot be judged; `change` is None if one of the runs does not have it."""
    if change is None:
        return (
            "log it in both runs; `workbench steps` on each of them says which of its columns were not understood, and"
            " --map names the column of a measure"
        )
    return f"log in each run at least {STEPS_AT_LEAST} steps in which no trace is recorded and no checkpoint saved"


def _doubt(change: MeasureChange | None) -> Doubt:
    """Return why a measure cannot be judged with certainty; `change` is None if one of the runs does not have it."""
    if change is None:
        return Doubt.NOT_IN_BOTH
    return Doubt.WIDE_INTERVAL if change.is_sufficient else Doubt.FEW_STEPS


def _doubt_text(change: MeasureChange | None) -> str:
    """Return a phrase on why a measure cannot be judged with certainty, such as `4 steps are too few`."""
    if change is None or _doubt(change) is Doubt.NOT_IN_BOTH:
        return "it is not in the logs of both runs"
    steps = quantity(change.samples, "step")
    if _doubt(change) is Doubt.FEW_STEPS:
        return f"{steps} are too few"
    return f"{steps} vary too much: 95 % interval {interval_text(change.low, change.high)}"


def _needed_text(change: MeasureChange) -> str:
    if _doubt(change) is Doubt.FEW_STEPS:
        return f"at least {STEPS_AT_LEAST} comparable steps in both runs"
    return "more steps, or steps that vary less"


def _is_open(change: MeasureChange) -> bool:
    """Return whether a measure may have grown by more than the default limit, but its steps are too few or too noisy.

    The result is False for a measure without a default limit.
    """
    allowed = ALLOWED_CHANGES.get(change.measure)
    if allowed is None or change.measure is Measure.STEP_TIME_MEAN:
        return False
    if change.is_sufficient:
        return change.change > allowed >= change.low
    return change.measure is Measure.STEP_TIME or abs(change.change) > allowed


def _time_causes(a: MeasuredRun, b: MeasuredRun) -> list[Evidence]:
    """Return evidence for why run `b` is slower: ranks that are late only in `b`, and the phases that grew most."""
    before, after = a.measures.phases, b.measures.phases
    extra_s = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    largest = sorted(extra_s, key=lambda name: -extra_s[name])[:_NAMED_AT_MOST]
    # A rank that was late in both runs did not make the second one slower.
    late_before = {straggler.rank for straggler in a.stragglers}
    late = [straggler for straggler in b.stragglers if straggler.rank not in late_before][:_NAMED_AT_MOST]
    waits = [f"rank {one.rank} of run B makes the others wait: {CAUSE_NAMES[one.cause]}" for one in late]
    notable = _NOTABLE_SHARE * sum(extra for extra in extra_s.values() if extra > 0)
    grown = [
        f"phase {name} takes {duration(extra_s[name])} more per step in run B"
        for name in largest
        if extra_s[name] > notable
    ]
    return [Evidence(text=text) for text in [*waits, *grown]]


def verdict(
    findings: Sequence[Finding],
    open_gates: Sequence[Finding],
    lines: Sequence[Line],
    changes: Sequence[MeasureChange],
    parity: LossParity | None,
) -> Verdict:
    """Return the verdict of a comparison: a regression, healthy, or unknown if the evidence decides neither.

    Any of the `findings` makes it a regression. `open_gates` are the findings on measures with a limit that cannot be
    judged. `lines` are the compared quantities, `changes` the changes of measures with their intervals, and `parity`
    says whether the losses agree (None: not compared).
    """
    unsure = [change for change in changes if _is_open(change)]
    missing = [f"{_MEASURE_NAMES[change.measure]}: {_doubt_text(change)}" for change in unsure]
    if findings:
        return Verdict(
            status=status_of(findings),
            kind="regression",
            sentence=joined_sentences([finding.title for finding in findings]),
            confidence=findings[0].confidence,
            missing=missing,
        )
    comparable = [line for line in lines if line.is_comparable]
    if open_gates:
        sentence = joined_sentences([finding.title for finding in open_gates])
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=sentence, confidence=0.2, missing=missing)
    if unsure or not comparable:
        sentence = "; ".join(map(_unsure_text, unsure)) or "the runs have no measurement in common"
        # The sentence already says why each measure is uncertain.
        missing = [f"{_MEASURE_NAMES[change.measure]}: {_needed_text(change)}" for change in unsure]
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=sentence, confidence=0.2, missing=missing)
    parts = [f"{line.what} {line.change}" for line in comparable[:_NAMED_AT_MOST]]
    sentence = ", ".join(
        [f"no measure of run B grew by more than is allowed: {parts[0]}", *parts[1:], *_parity_text(parity)]
    )
    return Verdict(status=Status.OK, kind="healthy", sentence=sentence, confidence=0.8, missing=missing)


def _unsure_text(change: MeasureChange) -> str:
    return f"{_MEASURE_NAMES[change.measure]} {signed_percent(change.change)}, but {_doubt_text(change)}"


def _parity_text(parity: LossParity | None) -> list[str]:
    """Return a list with a phrase: the losses of the runs are identical, or from which step on they diverge.

    The list is empty if neither is known.
    """
    if parity is None:
        return []
    if parity.identical:
        return [f"the losses of all {parity.steps} common steps are identical"]
    return [] if parity.diverges_from is None else [f"the losses diverge from step {parity.diverges_from} on"]


_SCHEMA = "workbench.compare/1"
RunOrPath = Run | str | PathLike[str]


def analyze(
    a: RunOrPath, b: RunOrPath, options: store.Options | None = None, limits: Mapping[str, float] | None = None
) -> Report[CompareData]:
    """Return a report of what changed from run `a` to run `b`: time, loss, memory, traces and settings.

    `a` and `b` are run folders, single files, or results of `analyzers.run.discover`. `limits` maps measures to
    the relative increase that is allowed, in place of the default in `ALLOWED_CHANGES`. A measure in `limits` that
    cannot be judged is a finding too.

    Example:
        report = analyze("before", "after", limits={"step_time": 0.03})
        report.verdict.kind  # "regression", "healthy", or "unknown"
        report.data.contrasts[0].low  # the lower end of the 95 % interval of the relative change

    Raises:
        InputError: There is no such path, or the two have nothing in common that can be compared.
        ValueError: `limits` names an unknown measure.
    """
    a, b = run.as_run(a), run.as_run(b)
    options, gate = options or store.Options(), limits or {}
    first, second = measured_pair(a, b, options)
    # An analyzer that cannot read its files leaves a gap, not an error: the rest is still compared.
    changes, traces = changes_between(first, second), _traces_diff(a, b, options)
    lines = [*measure_lines(first.measures, second.measures, changes), *trace_lines(traces)]
    config = setting_rows(a.manifest(), b.manifest())
    if not lines and not config:
        raise InputError(f"{a.root} and {b.root}: nothing to compare", "give two runs, or two artefacts of one kind")
    memory, memory_findings = _memory_diff(a, b, options)
    worse = regressions(changes, gate, _time_causes(first, second), memory)
    findings = [*nonfinite_loss(first.steps, second.steps), *worse, *memory_findings, *_trace_findings(traces)]
    open_gates = undecided(changes, gate)
    parity, phases = _step_differences(first, second)
    return Report(
        schema=_SCHEMA,
        inputs=[*first.inputs, *second.inputs, *_trace_inputs(a, b, traces)],
        verdict=verdict(ranked(findings), open_gates, lines, changes, parity),
        findings=ranked([*findings, *open_gates]),
        data=CompareData(
            a=first.measures,
            b=second.measures,
            rows=[*(line.row() for line in lines), *config],
            config=config,
            contrasts=changes,
            parity=parity,
            phases=phases,
            memory=memory,
            traces=traces,
        ),
    )


def _step_differences(a: MeasuredRun, b: MeasuredRun) -> tuple[LossParity | None, list[PhaseChange]]:
    """Return the comparison of the losses of both runs, and the changes of the durations of their step phases.

    The result is (None, []) unless both runs logged steps.
    """
    if not a.steps or not b.steps:
        return None, []
    return loss_parity(a.steps, b.steps), phase_changes(a.steps, b.steps)


def _memory_diff(a: Run, b: Run, options: store.Options) -> tuple[Diff | None, list[Finding]]:
    """Return the difference of memory at the peak between two runs, and the findings on it.

    The result is (None, []) unless both runs left readable snapshots.
    """
    before, after = (run.newest_step(source.of(Kind.SNAPSHOT)) for source in (a, b))
    if not before or not after:
        return None, []
    return answer_or_none(lambda: compare_memory(before, after, options)) or (None, [])


def _traces_diff(a: Run, b: Run, options: store.Options) -> TraceDiff | None:
    """Return the difference between the newest traces of two runs; None unless both have readable traces."""
    before, after = (run.newest_step(source.of(Kind.TRACE)) for source in (a, b))
    return answer_or_none(lambda: diff.compare(before, after, options)) if before and after else None


def _trace_findings(traces: TraceDiff | None) -> list[Finding]:
    slower = step_change_finding(traces) if traces else None
    return [slower] if slower else []


def _trace_inputs(a: Run, b: Run, traces: TraceDiff | None) -> list[Input]:
    compared = (a, b) if traces else ()
    return [trace.as_input() for source in compared for trace in run.newest_step(source.of(Kind.TRACE))]
