"""Analyze the step logs of a run: `analyze` returns a `Report[StepsData]` on step times, late ranks and the loss."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path

import msgspec
import numpy as np

from analyzers import run, store
from analyzers.columns import Floats, Integers, Mask
from analyzers.errors import InputError
from analyzers.holders import FOLDER, Holder, read_holders
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
)
from analyzers.steps.columns import NumberedBy, Quantity
from analyzers.steps.goodput import (
    goodput,
    long_step_finding,
    overhead_finding,
    overheads,
    slowdown_findings,
    stall_finding,
)
from analyzers.steps.lateness import Lateness, lateness, straggler_findings
from analyzers.steps.loading import load
from analyzers.steps.losses import (
    events,
    first_nonfinite,
    loss_findings,
    loss_notes,
    nonfinite_finding,
    recovered_notes,
)
from analyzers.steps.mapping import UNKNOWN_UNIT
from analyzers.steps.model import (
    GlobalStall,
    LongStep,
    MappedColumn,
    MappedLog,
    Problem,
    RankSteps,
    StepsData,
    TaggedSteps,
)
from analyzers.steps.rank_differences import count_finding, count_mismatches, growth_finding, memory_growth
from analyzers.steps.step_times import global_stalls, single_stalls, step_time_changes
from analyzers.steps.stragglers import stragglers
from analyzers.steps.table import NOT_PLAIN, Steps, confidence, log_of_rank, note
from analyzers.words import duration, quantity, rank_names


def summary(steps: Steps, rank: int | None = None, step: int | None = None) -> list[RankSteps]:
    """Return one `RankSteps` per rank, over all of its steps or only over the given rank and step.

    Raises:
        InputError: The rank or step is not in the logs.
    """
    selected = np.ones(len(steps.table), dtype=bool)
    for name, wanted in (("rank", rank), ("step", step)):
        selected &= True if wanted is None else steps.table[name].to_numpy() == wanted
    if not selected.any():
        raise InputError("no step log has this rank and step", "leave out --rank or --step to see which there are")
    medians = Medians.of_rows(steps, _typical_rows(steps, selected))
    bounds = np.searchsorted(steps.table["rank"].to_numpy(), [*steps.ranks, steps.ranks[-1] + 1])
    rows = ((code, start + np.flatnonzero(selected[start:end])) for code, (start, end) in enumerate(pairwise(bounds)))
    return [_rank_summary(steps, medians, code, own) for code, own in rows if len(own)]


def _typical_rows(steps: Steps, selected: Mask) -> Mask:
    """Return a mask of the rows of `steps.table` for computing medians, among the rows in the mask `selected`.

    For each rank these are the steps that did nothing besides training. If there are none, all of its timed steps are
    used.
    """
    plain, codes = selected & steps.plain.to_numpy(), steps.rank_codes
    timed = selected & steps.table["dur_s"].notna().to_numpy()
    # A rank whose every step evaluates or saves would have no median at all.
    has_plain = np.bincount(codes[plain], minlength=len(steps.ranks)) > 0
    return np.where(has_plain[codes], plain, timed)


@dataclass(frozen=True)
class Medians:
    """Medians over the typical steps of each rank, as arrays with one value per rank in the order of `Steps.ranks`.

    `rows` is a mask of the rows of `Steps.table` that are typical steps. `step` is the duration, `mad` its median
    absolute deviation, and `phases` is {clock: {phase: time}}, all in seconds; `tokens` is the number of tokens per
    step.
    """

    rows: Mask
    step: Floats
    mad: Floats
    tokens: Floats
    phases: Mapping[str, Mapping[str, Floats]]

    @classmethod
    def of_rows(cls, steps: Steps, rows: Mask) -> "Medians":
        """Return the medians of each rank over the rows of `steps.table` in the mask `rows`.

        They are computed for all ranks at once, because a group-by per rank is far slower.
        """
        times = steps.table["dur_s"].to_numpy()
        step = steps.by_rank(times, rows)
        clocks = {"phases": steps.phases, "cpu": steps.cpu, "device": steps.device}
        return cls(
            rows,
            step,
            steps.by_rank(np.abs(times - step[steps.rank_codes]), rows),
            steps.by_rank(steps.table["tokens"], rows),
            {clock: {name: steps.by_rank(frame[name], rows) for name in frame} for clock, frame in clocks.items()},
        )


def _rank_summary(steps: Steps, medians: Medians, code: int, rows: Integers) -> RankSteps:
    """Return the summary of one rank: `code` is its index in `steps.ranks`, `rows` are its selected row numbers.

    `medians` has the medians of all ranks over their typical steps.
    """
    column = {
        name: steps.table[name].to_numpy()[rows] for name in ("rank", "step", "memory_bytes", "loss", "loss_state")
    }
    times = steps.table["dur_s"].to_numpy()[rows[medians.rows[rows]]]
    losses = column["loss"][column["loss_state"] > 0]
    median, tokens = (float(values[code]) if len(times) else None for values in (medians.step, medians.tokens))
    by_clock = {
        clock: {name: float(values[code]) for name, values in named.items()} if len(times) else {}
        for clock, named in medians.phases.items()
    }
    return RankSteps(
        rank=int(column["rank"][0]),
        steps=len(rows),
        first_step=int(column["step"][0]),
        last_step=int(column["step"][-1]),
        median_step_s=median,
        mad_s=float(medians.mad[code]) if len(times) else None,
        p95_step_s=float(np.quantile(times, 0.95)) if len(times) else None,
        **by_clock,
        tokens_per_s=tokens / median if tokens and median else None,
        peak_memory_bytes=int(column["memory_bytes"].max()),
        last_loss=float(losses[-1]) if len(losses) and np.isfinite(losses[-1]) else None,
    )


# Count the steps with each tag, such as checkpoint or compile, and compute their median duration.
#
# A tagged step did something besides training.


def _tagged_steps(steps: Steps) -> dict[str, TaggedSteps]:
    """Return, for each tag that occurs, the number of its steps and their median duration, in the order of NOT_PLAIN.

    A step with two tags counts for both.
    """
    tags = steps.table["tags"]
    counted = {}
    for tag in NOT_PLAIN:
        # Rows hold joined tags ("first,gc"); there are few different texts, so they are searched instead of the rows.
        texts = [text for text in tags.unique() if tag in text.split(",")]
        if texts:
            rows = steps.table[tags.isin(texts)]
            median = rows["dur_s"].median()
            counted[tag] = TaggedSteps(
                steps=rows["step"].nunique(), median_step_s=None if np.isnan(median) else float(median)
            )
    return counted


def answer_all(steps: Steps, late: Lateness, options: store.Options | None = None) -> StepsData:
    """Return all results from the step logs of a run: ranks, stragglers, stalls, changes, losses, goodput.

    `late` is how late each rank is in each step. If `options` select a rank or a step, only `StepsData.ranks` is
    restricted to them; all other fields cover the whole run.

    Raises:
        InputError: There is no such rank or step.
    """
    options = options or store.Options()
    nonfinite = first_nonfinite(steps)
    return StepsData(
        world_size=steps.world_size,
        ranks=summary(steps, options.rank, options.step),
        stragglers=stragglers(steps, late),
        tagged=_tagged_steps(steps),
        stalls=global_stalls(steps),
        changes=step_time_changes(steps),
        events=events(steps),
        goodput=goodput(steps, late),
        first_nonfinite_step=nonfinite.step if nonfinite else None,
        long_steps=single_stalls(steps, late) or msgspec.UNSET,
        logs=steps.logs or msgspec.UNSET,
    )


_LOGS_AT_MOST = 4
NAMES_AT_MOST = 8
LARGE = 1e6
"""The value from which on digits after the point are not shown, as in times since the epoch and sizes in bytes."""
_QUANTITY_NAMES = {
    Quantity.STEP: "step",
    Quantity.LOSS: "loss",
    Quantity.LEARNING_RATE: "learning rate",
    Quantity.GRAD_NORM: "gradient norm",
    Quantity.STEP_TIME: "step time",
    Quantity.STEP_RATE: "steps per second",
    Quantity.TOKENS_PER_S: "tokens per second",
    Quantity.MEMORY: "memory",
    Quantity.RESERVED: "reserved memory",
    Quantity.DATA_TIME: "data loading",
    Quantity.EPOCH: "epoch",
    Quantity.RANK: "rank",
    Quantity.CLOCK: "time of the row",
}


SIZES = (Quantity.MEMORY, Quantity.RESERVED)
_DECIMAL = ("kb", "mb", "gb", "tb")
"""Units of memory that mean powers of 1000, but that training code prints after dividing by 1024."""


def _column_notes(steps: Steps) -> list[Finding]:
    """Return a note for each log of another trainer that lists which columns were read as which quantities.

    A second note follows for a log whose steps are numbered by line or epoch.
    """
    notes = []
    for log in steps.logs[:_LOGS_AT_MOST]:
        notes.append(_columns_note(log))
        if log.numbered_by is not NumberedBy.COLUMN:
            notes.append(_numbering_note(log))
    return notes


def _columns_note(log: MappedLog) -> Finding:
    read = [column for column in log.columns if column.quantity]
    others = [column.name for column in log.columns if not column.quantity]
    title = ", ".join(f"'{column.name}' as {_quantity_name(column)}{_unit_text(column)}" for column in read)
    values = ", ".join(f"{column.name} = {number(column.last)}" for column in read if column.last is not None)
    facts = [f"last values: {values}"] if values else []
    facts += [f"columns that were not used: {listed(others)}"] if others else []
    return msgspec.structs.replace(
        note("steps.columns", f"columns read from {log.path}: {title}", why(log), ADVICE if values else _OF_NAMES),
        evidence=[Evidence(text=fact, source=log.path) for fact in [*facts, *_row_facts(log)][:EVIDENCE_AT_MOST]],
    )


def number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() or abs(value) >= LARGE else f"{value:.6g}"


def _quantity_name(column: MappedColumn) -> str:
    return _QUANTITY_NAMES[column.quantity] if column.quantity else ""


def why(log: MappedLog) -> str:
    """Return the reason why the report lists the columns that it read: another program chose their names."""
    chosen = [column.name for column in log.columns if column.chosen]
    how = f", except for {listed(chosen)}, which --map names" if chosen else ""
    return (
        "another program wrote this log, so what a column holds was recognised by its name"
        f"{how}. A column that is taken for the wrong quantity makes numbers of this report wrong"
    )


_OF_NAMES = (
    "check that each column holds what its name says; if not, name the right one: `workbench steps PATH --map"
    " loss=COLUMN` (--map may be repeated)"
)
ADVICE = (
    "compare the last values in the evidence with what you know of the run. If they fit, there is nothing to do;"
    " otherwise name the right column: `workbench steps PATH --map loss=COLUMN` (--map may be repeated)"
)


def _unit_text(column: MappedColumn) -> str:
    """Return the unit of a column as a suffix, such as ` (in ms)`; empty for a quantity without a unit.

    If a size is logged in GB, the suffix says that it is read as GiB, because training code divides by 1024.
    """
    if column.unit == UNKNOWN_UNIT:
        return " (unit unknown)"
    if column.quantity in SIZES and column.unit in _DECIMAL:
        return f" (in {column.unit.upper()}, taken as {column.unit[0].upper()}iB)"
    return f" (in {column.unit})" if column.unit else ""


def listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_AT_MOST} more" if len(names) > NAMES_AT_MOST else ""
    return ", ".join(names[:NAMES_AT_MOST]) + more


def _row_facts(log: MappedLog) -> list[str]:
    """Return a sentence for each unusual property of the rows of a log, such as repeated steps."""
    facts = []
    if log.timed_by_clock:
        facts.append("no column has the duration of a step, so step times are the intervals between rows")
    if log.duplicates:
        facts.append(
            f"{quantity(log.duplicates, 'row')} ignored, because a later row has the same step, as where several ranks"
            " write to one log: the last row of a step counts"
        )
    if log.restarts:
        facts.append(f"the step goes back {quantity(log.restarts, 'time')}: the job was resumed, the later rows count")
    if log.dropped:
        facts.append(f"{quantity(log.dropped, 'row')} without a step not read")
    if log.texts:
        facts.append(f"columns that hold text are not read: {listed(log.texts)}")
    if log.omitted:
        facts.append(f"{quantity(log.omitted, 'value')} of further columns not read")
    return facts


def _numbering_note(log: MappedLog) -> Finding:
    if log.numbered_by is NumberedBy.EPOCH:
        title = f"{log.path} has a row per epoch: epochs are shown as steps"
        return note("steps.numbered_by_epoch", title, "the log has no column of steps", "log the step beside the epoch")
    title = f"{log.path} does not say to which step a row belongs: the rows are counted from 1"
    why = "step 5 in this report is the fifth row of the log, which need not be step 5 of the training"
    return note(
        "steps.numbered_by_line",
        title,
        why,
        "if one of the log's fields has the step, name it: `workbench steps PATH --map step=FIELD`. Otherwise print the"
        " step in each row",
    )


def _unknown_units(steps: Steps) -> list[str]:
    """Return a sentence for each column whose values cannot be used because its unit is unknown."""
    return [
        f"{_QUANTITY_NAMES[column.quantity]}: the unit of column {column.name} is unknown; give it, such as"
        f" --map {column.quantity}_{'ms' if column.quantity in _TIMES else 'gib'}={column.name}"
        for log in steps.logs
        for column in log.columns
        if column.quantity and column.unit == UNKNOWN_UNIT
    ][:_LOGS_AT_MOST]


_TIMES = (Quantity.STEP_TIME, Quantity.DATA_TIME)


_CHART = (
    "to see kernels and communication, too, record a profiler trace (--profiler.enable_profiling in torchtitan 0.3),"
    " and read it with `workbench trace`"
)


def _log_notes(steps: Steps) -> list[Finding]:
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
    known = [finding.title for finding in _log_notes(steps)] + steps.problems + _unknown_units(steps)
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
        *(growth_finding(growth, steps.device_type, _holders(steps, growth.rank)) for growth in memory_growth(steps)),
    ]


def _holders(steps: Steps, rank: int) -> list[Holder] | None:
    """Return what the recorder found to keep tensors on a rank; None if it was not asked to look."""
    logs = (Path(log.path) for log in steps.inputs if log.rank == rank)
    return next((read_holders(log.parents[1] / FOLDER, rank) for log in logs if len(log.parents) > 1), None)


def _in_stall(step: LongStep, stalls: Sequence[GlobalStall]) -> bool:
    return any(stall.first_step <= step.step <= stall.last_step for stall in stalls)


def notes(steps: Steps, data: StepsData) -> list[Finding]:
    return [*recovered_notes(steps), *loss_notes(data.events), *_log_notes(steps), *_column_notes(steps)]


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
        inputs=steps.inputs,
        verdict=verdict(findings, missing) or healthy(steps, data, late, missing),
        findings=findings + unreadable,
        data=data,
    )
