"""Analyze a hung job: `analyze` takes a run folder and returns a `Report[HangData]`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.errors import InputError
from analyzers.hangs.classify.cause import UNKNOWN_PROCESS, Cause, HangContext, Process
from analyzers.hangs.classify.culprits import find_causes
from analyzers.hangs.classify.from_stacks import StackCause, cause_from_stacks, find_places
from analyzers.hangs.classify.parting import find_parting
from analyzers.hangs.findings.catalogue import detail, entry_of, next_step, title, why
from analyzers.hangs.findings.evidence import evidence, measure_growth
from analyzers.hangs.findings.from_stacks import culprits_from_stacks, findings_from_stacks, verdict_from_stacks
from analyzers.hangs.findings.verdict import first_sentence, unreadable, verdict
from analyzers.hangs.model import Culprit, HangClass, HangData, Job, Reason, Wait
from analyzers.hangs.reading.dump_sets import DumpSet, open_set, unreadable_dumps
from analyzers.hangs.reading.job import load_job
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import CollectionReason, Heartbeat
from analyzers.node_health import find_gaps
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Report, Severity, ranked
from analyzers.run import Kind, Run, discover
from analyzers.words import rank_names

_SCHEMA = "workbench.hang/1"
_COLLECT_AGAIN = "collect the dumps again, or copy the files again: they may be truncated"


def analyze(run: Run | str | PathLike[str], options: store.Options | None = None) -> Report[HangData]:
    """Return a report on which ranks hang the job, and why, from the newest set of Flight Recorder dumps in a run.

    `run` is a run folder, a folder of dumps, or the result of `analyzers.run.discover` for one. Dumps of NCCL, gloo and
    other backends are read in all versions since torch 2.4, as pickles, JSON, gzipped, or pages saved from PyTorch's
    debug server. Groups, stacks, exit codes and logs beside the dumps are used if they exist; for some answers they are
    enough without any dump. `verdict.missing` names the evidence that was missing. Nothing in a file is executed.

    Example:
        report = analyze("outputs/dumps")
        report.verdict.kind, report.verdict.ranks  # (HangClass.HOST_STUCK, [3])
        report.data.culprits[0].victims  # [0, 1, 2]
        report.findings[0].next  # "Find out which condition ends the loop in tokenize (data/text.py:41), ..."

    Raises:
        InputError: There is no such path, or it holds no readable dump and nothing else about its ranks.
    """
    run = run if isinstance(run, Run) else discover(Path(run))
    options = options or store.Options()
    dumps, side = open_set(run)
    job = load_job(dumps.rounds[0], side, options, _teller(side, options))
    side.gaps = find_gaps(run, job.world_size)
    job.unreadable |= unreadable_dumps(run, dumps, set(range(job.world_size)).difference(job.ranks))
    beside = (side.exits, side.exit_codes, side.collection, side.stack_files, side.last_words.beats)
    if not job.ranks and not any(beside):
        why = "; ".join(unreadable(job)[:3])
        raise InputError(f"{run.root}: no readable Flight Recorder dump" + (f": {why}" if why else ""), _COLLECT_AGAIN)
    context = HangContext.of(job, side)
    causes = _drop_stale(_check_progress(find_causes(context), job, dumps, side, options), side)
    if not causes and not job.ranks and (cause := cause_from_stacks(find_places(side), job.world_size)):
        return _report_of_stacks(context, run, cause)
    return _report_of(context, dumps, causes)


def _teller(side: SideFiles, options: store.Options) -> Callable[[Job], None] | None:
    """Return a function that shows the user what the first dumps say, while others are read; None without a display.

    The display is `options.progress`. The function takes the job as far as it has been read; `side` has the files
    beside its dumps.
    """
    progress = options.progress

    def tell(job: Job) -> None:
        if progress and progress.is_awaited:
            progress.answer(len(job.ranks), first_sentence(HangContext.of(job, side)))

    return tell if progress else None


def _report_of_stacks(context: HangContext, run: Run, cause: StackCause) -> Report[HangData]:
    """Return the report on a hang for which only stacks are available; `cause` is what they show."""
    job = context.job
    return Report(
        schema=_SCHEMA,
        inputs=[artefact.as_input() for artefact in run.of(Kind.STACKS)],
        verdict=verdict_from_stacks(cause, job.world_size),
        findings=findings_from_stacks(cause),
        data=HangData(
            world_size=job.world_size,
            ranks_with_dump=[],
            groups=job.groups,
            culprits=culprits_from_stacks(cause),
            waits=[],
        ),
    )


def has_ended_cleanly(run: Run) -> bool:
    """Return whether all ranks of a run recorded that they ended without an error; the dumps are not used.

    Only the recorders of this project write this record, in each rank's last heartbeat; without their files the result
    is False.
    """
    side = open_set(run)[1]
    return side.all_ended_cleanly(max((file.world_size for file in side.groups.values()), default=0))


def _report_of(context: HangContext, dumps: DumpSet, causes: list[Cause]) -> Report[HangData]:
    """Return the report with a finding and a culprit for each of the `causes` of a hang; there may be none."""
    job = context.job
    return Report(
        schema=_SCHEMA,
        inputs=[artefact.as_input() for artefacts in dumps.rounds for artefact in artefacts],
        verdict=verdict(context, causes),
        findings=ranked(_make_finding(context, cause) for cause in causes) + _report_unreadable(job),
        data=HangData(
            world_size=job.world_size,
            ranks_with_dump=sorted(job.ranks),
            groups=job.groups,
            culprits=[_make_culprit(cause) for cause in causes],
            waits=waits(context),
            ended_cleanly=context.side.all_ended_cleanly(job.world_size),
        ),
    )


def waits(context: HangContext) -> list[Wait]:
    """Return, for each waiting rank, the operation that it is in and the ranks that it waits for."""
    job, graph = context.job, context.graph
    current_ops = ((rank, node, job.ranks[rank].current) for rank, node in sorted(graph.waits_in.items()))
    return [
        Wait(rank, graph.absent[node], job.groups[node.group].name, node.seq, job.operation(current))
        for rank, node, current in current_ops
        if current
    ]


# Compare two rounds of dumps of the same ranks: a rank that made progress between them is slow, not hung.

_ADDED_CONFIDENCE = 0.05
"""The confidence that is added if a second round of dumps shows no progress."""
_HIGHEST_CONFIDENCE = 0.99
_SLOW_CONFIDENCE = 0.8


@dataclass(frozen=True)
class TwoRounds:
    """Two rounds of dumps; in each round, every rank was asked once for its dump. Some time passed between the rounds.

    `second` is None if no rank left a dump in the second round. `side` has the heartbeats of both rounds.
    """

    first: Job
    second: Job | None
    side: SideFiles

    def made_progress(self, rank: int) -> bool | None:
        """Return whether a rank issued operations or changed its phase between the two rounds; None if unknown."""
        before, after = self._beat(rank, 0), self._beat(rank, 1)
        has_both = self.second and rank in self.first.ranks and rank in self.second.ranks
        issued = _newest_ns(self.second, rank) > _newest_ns(self.first, rank) if self.second and has_both else None
        # Heartbeats of a rank that has ended stay where they are, so they count without a dump too.
        if before and after:
            return after.time_ns > before.time_ns or bool(issued)
        return issued

    def _beat(self, rank: int, number: int) -> Heartbeat | None:
        rounds = self.side.rounds
        answer = rounds[number].ranks.get(rank) if number < len(rounds) else None
        return answer.heartbeat if answer else None


def _check_progress(
    causes: Sequence[Cause], first: Job, dumps: DumpSet, side: SideFiles, options: store.Options
) -> list[Cause]:
    """Return the causes of a hang, corrected by a second round of dumps; unchanged if there was no second round.

    If the ranks involved made no progress between the rounds, a cause becomes more certain. If they made progress, the
    cause becomes that of a slow rank, or is dropped (see `_check_cause`). `first` is the job as the first round shows
    it; `dumps` has the files of both rounds.
    """
    if not causes or max(len(dumps.rounds), len(side.rounds)) < 2:
        return list(causes)
    second = load_job(dumps.rounds[1], side, options) if len(dumps.rounds) > 1 else None
    rounds = TwoRounds(first, second, side)
    return [checked for cause in causes if (checked := _check_cause(cause, rounds))]


def _drop_stale(causes: Sequence[Cause], side: SideFiles) -> list[Cause]:
    """Return the causes of a hang, corrected if all ranks involved went on after the dumps or ended cleanly.

    Such ranks were slow rather than hung, so their cause is changed to class `SLOW`. The cause is dropped if a rank
    reported dead runs again after a restart, or if the dumps were not taken because of a stall.
    """
    return [kept for cause in causes if (kept := _check_last_word(cause, side))]


def _check_last_word(cause: Cause, side: SideFiles) -> Cause | None:
    """Return `cause`, changed to class `SLOW` if all ranks involved went on after the dumps; None if it is disproved.

    If all of them went on, a cause is disproved in two cases: it says that a rank died or left no dump, or the dumps
    were not taken because of a stall. If the stack of a culprit was requested by a signal, it may have gone on only
    because of this signal, so its cause stays unchanged.
    """
    if not all(side.has_moved_past(rank) for rank in {*cause.ranks, *cause.victims}):
        return cause
    # Asking for its stack by a signal interrupts a rank's system call, so that it may have gone on only because of it.
    if any(side.was_signalled(rank) for rank in cause.ranks):
        return cause
    collection = side.collection
    if cause.kind in (HangClass.DEAD, HangClass.UNKNOWN):
        return None
    if collection and collection.reason != CollectionReason.STALLED:
        return None
    return cause.with_class(HangClass.SLOW, Reason.MOVED_ON, _SLOW_CONFIDENCE)


def _check_cause(cause: Cause, rounds: TwoRounds) -> Cause | None:
    """Return `cause`, corrected by a second round of dumps; None if nothing is wrong.

    The ranks involved are the culprits and victims. If none of them made progress between the rounds, the cause becomes
    more certain. If all of them made progress, the class becomes `SLOW`; but if a person requested the dumps, nothing
    is wrong. If only some did, or if the class is `DEAD` or `UNKNOWN`, the cause is unchanged.
    """
    if cause.kind in (HangClass.DEAD, HangClass.UNKNOWN):
        return cause
    moved = [m for rank in {*cause.ranks, *cause.victims} if (m := rounds.made_progress(rank)) is not None]
    # Some moved and some did not: a victim may work on until it needs the culprit.
    if not moved or (any(moved) and not all(moved)):
        return cause
    if not any(moved):
        confidence = cause.culprit.confidence + _ADDED_CONFIDENCE
        return cause.with_confidence(round(min(_HIGHEST_CONFIDENCE, confidence), 2))
    collection = rounds.side.collection
    if collection and collection.reason == CollectionReason.ASKED:
        return None
    return cause.with_class(HangClass.SLOW, Reason.MADE_PROGRESS, _SLOW_CONFIDENCE)


def _newest_ns(job: Job, rank: int) -> int:
    """Return when a rank issued its newest operation, in nanoseconds since the epoch; 0 if it issued none."""
    return max((op.created_ns for op in job.ranks[rank].ops), default=0)


def _make_culprit(cause: Cause) -> Culprit:
    return msgspec.structs.replace(cause.culprit, detail=detail(cause), title=title(cause))


def _make_finding(context: HangContext, cause: Cause) -> Finding:
    """Return the finding on a cause; its id is `hang.` followed by the cause's class."""
    process, parting = process_of(context.side, cause.ranks[0]), find_parting(context.side, cause)
    cause = replace(cause, process=process, parting=parting, is_gloo=context.is_gloo)
    if cause.end and cause.end.is_silent:
        cause = replace(cause, growth=measure_growth(context.side.step_logs.get(cause.ranks[0])))
    return Finding(
        id=f"hang.{cause.kind}",
        severity=_severity_of(context, cause),
        title=title(cause),
        why=why(cause),
        next=next_step(cause),
        ranks=cause.ranks,
        step=cause.culprit.step,
        evidence=evidence(context, cause),
        confidence=cause.culprit.confidence,
    )


def process_of(side: SideFiles, rank: int) -> Process:
    file = side.groups.get(rank)
    return Process(file.pid, file.host) if file else UNKNOWN_PROCESS


def _severity_of(context: HangContext, cause: Cause) -> Severity:
    if cause.kind is HangClass.SLOW and context.side.all_ended_cleanly(context.job.world_size):
        return Severity.INFO
    return entry_of(cause).severity


def _report_unreadable(job: Job) -> list[Finding]:
    """Return, in a list, the finding that some dumps could not be read; the list is empty if all could be read."""
    damaged = sorted(job.unreadable)
    if not damaged:
        return []
    return [
        Finding(
            id="hang.unreadable_dump",
            severity=Severity.WARNING,
            title=f"the {'dump' if len(damaged) == 1 else 'dumps'} of {rank_names(damaged)} could not be read",
            why="an unreadable dump may hold the cause, or show what the other ranks wait for",
            next=_COLLECT_AGAIN,
            ranks=damaged,
            evidence=[Evidence(text=job.unreadable[r], rank=r) for r in damaged[:EVIDENCE_AT_MOST]],
            confidence=1.0,
        )
    ]
