"""Write notes on what the logs lack: ranks, the ends of truncated logs, steps of some ranks, answers to questions."""

from analyzers.kinds import Kind
from analyzers.report import Finding
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.findings.common import note
from analyzers.steps.table import Steps
from analyzers.words import agree, rank_names

CHART = (
    "look at its bars in Perfetto; for kernels and communication record a profiler trace"
    " (--profiler.enable_profiling in torchtitan 0.3), and read that with workbench trace"
)


def log_notes(steps: Steps) -> list[Finding]:
    """Return notes on ranks without a log, on truncated logs, and on ranks that finished fewer steps than others."""
    notes = []
    if any(each.kind == Kind.GANTT for each in steps.inputs):
        title = "the step times are those of torchtitan's Gantt chart of step phases, which is no profiler trace"
        notes.append(note("steps.gantt", title, CHART))
    # Other trainers print their steps on one rank only.
    known = {*steps.ranks, *(log.rank for log, _ in steps.unreadable)}
    if not steps.logs and (missing := sorted(set(range(steps.world_size)) - known)):
        title = f"{rank_names(missing)} of {steps.world_size} left no step log"
        notes.append(note("steps.missing_ranks", title, "look for their logs in a different folder", ranks=missing))
    if ranks := steps.truncated:
        title = f"the log of {rank_names(ranks)} ends in the middle of a line"
        notes.append(note("steps.torn_line", title, "see how the job ended: it stopped while writing", ranks=ranks))
    last = steps.table.groupby("rank")["step"].max()
    if ranks := [int(str(rank)) for rank in last[last < last.max()].index]:
        stops = f"{agree(ranks, 'stops', 'stop')} at step {int(last.min())} of {int(last.max())}"
        title = f"{rank_names(ranks)} finished fewer steps and {stops}"
        notes.append(note("steps.unequal_steps", title, "see how these ranks ended", int(last.min()), ranks))
    return notes


def unanswered(steps: Steps, late: Lateness) -> list[str]:
    """Return one sentence for each question about late ranks that logs of this kind cannot answer."""
    if len(steps.ranks) < 2:
        return []
    if not late.is_known:
        return ["which rank is late: these logs do not record what each rank does before it meets the others"]
    slow = "a rank with a slow backward, or slow sharded forward: only traces or processor times show when it arrives"
    return [] if late.by_processor else [slow]
