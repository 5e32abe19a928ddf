"""Analyze the step logs of a run: `analyze` returns a `Report[StepsData]` on step times, late ranks and the loss."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike

import msgspec

from analyzers import run, store
from analyzers.errors import InputError
from analyzers.kinds import Kind
from analyzers.report import (
    EVIDENCE_AT_MOST,
    Evidence,
    Finding,
    Report,
    Severity,
    Status,
    Verdict,
    ranked,
    status_of,
    tool_version,
)
from analyzers.steps.common import confidence, log_of_rank, note
from analyzers.steps.goodput import long_step_finding, overhead_finding, overheads, slowdown_findings, stall_finding
from analyzers.steps.lateness import Lateness, lateness, straggler_findings
from analyzers.steps.loading import load
from analyzers.steps.losses import first_nonfinite, loss_findings, loss_notes, nonfinite_finding, recovered_notes
from analyzers.steps.mapped_columns import column_notes, unknown_units
from analyzers.steps.model import GlobalStall, LongStep, Problem, StepsData
from analyzers.steps.rank_differences import count_finding, count_mismatches, growth_finding, memory_growth
from analyzers.steps.summary import answer_all
from analyzers.steps.table import Steps
from analyzers.words import duration, quantity, rank_names

_CHART = (
    "to see kernels and communication, too, record a profiler trace (--profiler.enable_profiling in torchtitan 0.3),"
    " and read it with `workbench trace`"
)


def log_notes(steps: Steps) -> list[Finding]:
    notes = []
    if any(each.kind == Kind.GANTT for each in steps.inputs):
        title = "the step times come from torchtitan's Gantt chart of step phases, which is no profiler trace"
        notes.append(note("steps.gantt", title, "the chart shows how long each phase took, but no kernels", _CHART))
    # Other trainers print their steps on one rank only.
    known = {*steps.ranks, *(log.rank for log, _ in steps.unreadable)}
    if not steps.logs and (missing := sorted(set(range(steps.world_size)) - known)):
        title = f"{rank_names(missing)} left no step log"
        why = (
            f"the job has {quantity(steps.world_size, 'rank')}, and late ranks can only be found among those with a log"
        )
        notes.append(
            note(
                "steps.missing_ranks",
                title,
                why,
                "look for the missing logs on the other nodes of the job, and copy them into the same folder",
                ranks=missing,
            )
        )
    if ranks := steps.truncated:
        notes.append(_torn_note(steps, ranks))
    last = steps.table.groupby("rank")["step"].max()
    if ranks := [int(str(rank)) for rank in last[last < last.max()].index]:
        whose = rank_names(ranks)
        stops = f"stops at step {int(last.min())}, those of other ranks at step {int(last.max())}"
        title = f"the step log of {whose} {stops}"
        why = f"ranks that train together finish the same steps, so {whose} ended earlier or stopped logging"
        advice = f"look at how {whose} ended (`workbench inspect` on the folder of the run)"
        notes.append(note("steps.unequal_steps", title, why, advice, int(last.min()), ranks))
    return notes


def _torn_note(steps: Steps, ranks: list[int]) -> Finding:
    """Return the note that the step logs of `ranks` end in the middle of a line, with the last whole line of each."""
    last = steps.table.groupby("rank")["step"].max()
    texts = {rank: f"the last whole line of rank {rank} is step {int(last[rank])}" for rank in ranks if rank in last}
    return msgspec.structs.replace(
        note(
            "steps.torn_line",
            f"the step log of {rank_names(ranks)} ends in the middle of a line",
            "the process ended while it wrote the line, or the file was copied while the job ran. That line is left"
            " out: the numbers of this report end with the line before it",
            "if the job has ended, find out how: `workbench inspect` on the folder of the run. If it is still"
            " running, copy the file again",
            ranks=ranks,
        ),
        evidence=[Evidence(text=text, source=log_of_rank(steps, rank)) for rank, text in texts.items()][
            :EVIDENCE_AT_MOST
        ],
    )


def unanswered(steps: Steps, late: Lateness) -> list[str]:
    """Return one sentence for each question about late ranks that this kind of log cannot answer."""
    if len(steps.ranks) < 2:
        return []
    if not late.is_known:
        return ["which rank is late: these logs do not record what each rank does before it meets the others"]
    slow = (
        "whether a rank is slow in its backward pass, or in the forward pass of sharded layers: all ranks wait there,"
        " so only profiler traces or processor times show which one they wait for"
    )
    return [] if late.by_processor else [slow]


_EXPLAINS_FIRST = {problem.finding_id: (number, problem) for number, problem in enumerate(Problem)}


def missing_evidence(steps: Steps, late: Lateness) -> list[str]:
    """Return a sentence for each kind of evidence that is missing in the logs and would make the verdict surer."""
    known = [finding.title for finding in log_notes(steps)] + steps.problems + unknown_units(steps)
    return known + unanswered(steps, late)


def verdict(findings: Sequence[Finding], missing: list[str]) -> Verdict | None:
    """Return the verdict, based on the most important fault (the first in `Problem`); None if there is no fault.

    `missing` has a sentence on each kind of evidence that is missing in the logs.
    """
    # Notes alone do not make a run unhealthy.
    faults = [finding for finding in findings if finding.severity is not Severity.INFO]
    if not faults:
        return None
    first = min(faults, key=lambda finding: _EXPLAINS_FIRST[finding.id])
    return Verdict(
        status=status_of(faults),
        kind=_EXPLAINS_FIRST[first.id][1],
        ranks=sorted({rank for finding in faults if finding.id == first.id for rank in finding.ranks}),
        sentence=first.title,
        confidence=first.confidence,
        missing=missing,
    )


def healthy(steps: Steps, data: StepsData, late: Lateness, missing: list[str]) -> Verdict:
    """Return the verdict on a run without faults, such as `4 ranks, 103 ms per step, no rank is late`.

    The verdict is `unknown` if the logs record neither step times nor losses. `missing` has a sentence on each kind of
    evidence that is missing in the logs.
    """
    median = max((rank.median_step_s for rank in data.ranks if rank.median_step_s is not None), default=None)
    if median is None and all(rank.last_loss is None for rank in data.ranks):
        return _no_numbers(missing)
    parts = [quantity(len(data.ranks), "rank")]
    parts.append("step times not recorded" if median is None else f"{duration(median)} per step")
    if late.is_known:
        # Without processor time a slow backward is invisible: everybody waits in it.
        parts.append("no rank is late" if late.by_processor else "no rank is late as far as these logs show")
    return Verdict(
        status=Status.OK,
        kind="healthy",
        sentence=", ".join(parts),
        confidence=confidence(steps),
        missing=missing,
    )


def _no_numbers(missing: list[str]) -> Verdict:
    """Return the verdict `unknown` for a run whose logs have steps, but neither step times nor losses.

    `missing` has a sentence on each kind of evidence that is missing in the logs.
    """
    return Verdict(
        status=Status.UNKNOWN,
        kind="unknown",
        sentence="the logs have steps, but neither step times nor losses: nothing is known of the run",
        confidence=0.0,
        missing=missing,
    )


def problems(steps: Steps, data: StepsData) -> list[Finding]:
    """Return the findings on faults of the run; a verdict may be based on each of them."""
    nonfinite = first_nonfinite(steps)
    return [
        *straggler_findings(steps, data.stragglers),
        *(stall_finding(steps, stall) for stall in data.stalls),
        *(long_step_finding(steps, stall) for stall in data.long_steps or () if not _in_stall(stall, data.stalls)),
        *slowdown_findings(steps, data.changes, data.stragglers),
        *(overhead_finding(steps, overhead) for overhead in overheads(data)),
        *loss_findings(steps, data.events),
        *([nonfinite_finding(steps, nonfinite)] if nonfinite and nonfinite.finite_from is None else []),
        *(count_finding(mismatch) for mismatch in count_mismatches(steps)),
        *(growth_finding(growth, steps.device_type) for growth in memory_growth(steps)),
    ]


def _in_stall(step: LongStep, stalls: Sequence[GlobalStall]) -> bool:
    return any(stall.first_step <= step.step <= stall.last_step for stall in stalls)


def notes(steps: Steps, data: StepsData) -> list[Finding]:
    return [*recovered_notes(steps), *loss_notes(data.events), *log_notes(steps), *column_notes(steps)]


_SCHEMA = "workbench.steps/1"


def analyze(
    logs: Sequence[run.Artefact] | str | PathLike[str], options: store.Options | None = None
) -> Report[StepsData]:
    """Return how long steps take, where the time goes, which ranks are late, and what the loss does.

    `logs` is a run folder, a log, or the artefacts that `analyzers.run.discover` returns: step logs of
    `workbench.recorders`, torchtitan's structured logs, TensorBoard event files, console logs and logs of other
    trainers. The most detailed kind is used; the others add loss and memory if it has none. The rank and step of the
    options restrict only `data.ranks`, because lateness is a comparison with all other ranks.

    Example:
        report = analyze("outputs")
        report.verdict.sentence  # "Rank 3 makes the others wait from step 6 on: data loading, late by 502 ms in ..."
        report.data.stragglers[0].cause  # Cause.DATA
        report.table("ranks")[["rank", "median_step_s"]]  # a pandas table

    Raises:
        InputError: There is no such path, no log has a step, or none has the step that the options select.
    """
    options = options or store.Options()
    artefacts = run.as_run(logs).of(*run.TIMED) if isinstance(logs, str | PathLike) else logs
    return _report_of(load(artefacts, options, _teller(options)), options)


def _teller(options: store.Options) -> Callable[[int, Steps], None] | None:
    """Return a function that shows the user what the first logs say, while others are read; None without a display.

    The function takes the number of logs read so far, and their steps. The display is `options.progress`.
    """
    progress = options.progress

    def tell(files: int, steps: Steps) -> None:
        # The step that the options select may be in another log.
        with suppress(InputError):
            if progress:
                progress.answer(files, _report_of(steps, options).verdict.sentence)

    return tell if progress else None


def _report_of(steps: Steps, options: store.Options) -> Report[StepsData]:
    """Return the report on steps that were loaded.

    Raises:
        InputError: None is the step that the options select.
    """
    late = lateness(steps)
    data = answer_all(steps, late, options)
    findings = ranked([*problems(steps, data), *notes(steps, data)])
    unreadable = [run.unreadable(log, "steps", error) for log, error in steps.unreadable]
    missing = missing_evidence(steps, late)
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
        inputs=steps.inputs,
        verdict=verdict(findings, missing) or healthy(steps, data, late, missing),
        findings=findings + unreadable,
        data=data,
    )
