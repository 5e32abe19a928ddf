"""Write notes on gaps in the logs: missing ranks, truncated ends, steps of only some ranks, unanswerable questions."""

import msgspec

from analyzers.kinds import Kind
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.findings.common import log_of_rank, note
from analyzers.steps.table import Steps
from analyzers.words import quantity, rank_names

_CHART = (
    "to see kernels and communication, too, record a profiler trace (--profiler.enable_profiling in torchtitan 0.3),"
    " and read it with `workbench trace`"
)


def log_notes(steps: Steps) -> list[Finding]:
    """Return notes on ranks without a log, on truncated logs, and on ranks that finished fewer steps than others."""
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
