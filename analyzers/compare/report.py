"""The entry point for comparisons: `analyze` returns a report of what changed from one run to another."""

from collections.abc import Mapping
from os import PathLike

from analyzers import run, store
from analyzers.compare.findings import nonfinite_loss, regressions, time_causes, undecided, verdict
from analyzers.compare.model import (
    CompareData,
    MeasuredRun,
    answer_or_none,
    changes_between,
    measure_lines,
    measured_pair,
    setting_rows,
    trace_lines,
)
from analyzers.errors import InputError
from analyzers.memory import Diff
from analyzers.memory import compare as compare_memory
from analyzers.report import Finding, Input, Report, ranked, tool_version
from analyzers.run import Kind, Run
from analyzers.steps.diff import LossParity, PhaseChange, loss_parity, phase_changes
from analyzers.traces import diff
from analyzers.traces.diff import TraceDiff, step_change_finding

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
    worse = regressions(changes, gate, time_causes(first, second), memory)
    findings = [*nonfinite_loss(first.steps, second.steps), *worse, *memory_findings, *_trace_findings(traces)]
    open_gates = undecided(changes, gate)
    parity, phases = _step_differences(first, second)
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
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
