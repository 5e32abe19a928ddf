"""Write the verdict: all causes in one sentence or, without a cause, what the dumps show."""

from collections.abc import Mapping, Sequence

from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.classify.culprits import find_causes
from analyzers.hangs.findings.catalogue import entry_of, title, with_victims
from analyzers.hangs.findings.wording import format_ending, format_exception, format_location
from analyzers.hangs.graph.divergence import MOST_RANKS, find_locations
from analyzers.hangs.model import GroupSource, HangClass, Job, Lack, Reason
from analyzers.hangs.reading.exits import is_victim
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import AnswerStatus, CollectionReason
from analyzers.report import Status, Verdict
from analyzers.words import agree, quantity, rank_names

_MOST_LACKS, _MOST_GROUPS = 50, 5
_LACKS = {
    Lack.STACKS: "no stacks in the {dump} of {ranks}",
    Lack.COMPLETED_OPERATIONS: "only unfinished operations in the {dump} of {ranks}",
    Lack.FIRST_PENDING_OPERATION: "the first unfinished operation of {ranks}: a larger TORCH_FR_BUFFER_SIZE keeps it",
    Lack.GROUP_NAMES: "the process groups of {ranks}: TORCH_DISTRIBUTED_DEBUG=DETAIL hides them",
}
_OUTDATED = "the only one is from before the job's last restart and shows another attempt"
STATUSES: Mapping[str, str] = {
    AnswerStatus.OK: "it was written, but is not here",
    AnswerStatus.TIMEOUT: "it did not answer in time",
    AnswerStatus.UNREGISTERED: "it never registered with the collector",
}


def missing(context: HangContext) -> list[str]:
    """Return a phrase for each piece of evidence that would have made the verdict more certain."""
    job, side = context.job, context.side
    lacks = [
        _LACKS[lack].format(dump=agree(ranks, "dump", "dumps"), ranks=rank_names(ranks))
        for lack, every in job.lacks.items()
        # A stack file of the rank makes up for a dump without stacks.
        if (ranks := [r for r in every if lack is not Lack.STACKS or r not in side.stack_files])
    ]
    lacks += [
        f"no map of groups was recorded: {rank_names(ranks)} may belong to {label}"
        for label, ranks in job.possible_members.items()
    ]
    lacks += [
        f"no dump of {rank_names(ranks)}" + (f": {why}" if why else "") for why, ranks in no_dump(job, side).items()
    ]
    inferred = [g.label for g in job.groups if g.source is GroupSource.ENTRIES]
    if inferred:
        names = ", ".join(inferred[:_MOST_GROUPS])
        lacks.append(f"no map of groups was recorded: the members of {names} are the ranks that used them")
    return [*unreadable(job), *side.gaps.phrases(), *lacks[:_MOST_LACKS]]


def unreadable(job: Job) -> list[str]:
    """Return a phrase for each error that made dumps unreadable: `the dump of rank 3 is unreadable: why`.

    Each phrase names all ranks whose dumps have the same error.
    """
    by_error: dict[str, list[int]] = {}
    for rank, error in sorted(job.unreadable.items()):
        by_error.setdefault(error, []).append(rank)
    return [
        f"the {agree(ranks, 'dump', 'dumps')} of {rank_names(ranks)} {agree(ranks, 'is', 'are')} unreadable: {error}"
        for error, ranks in by_error.items()
    ]


def no_dump(job: Job, side: SideFiles) -> dict[str, list[int]]:
    """Return {reason: ranks} for the ranks that left no dump; the reason is empty if it is not known."""
    by_reason: dict[str, list[int]] = {}
    for rank in (r for r in range(min(job.world_size, MOST_RANKS)) if r not in job.ranks and r not in job.unreadable):
        by_reason.setdefault(_why_no_dump(side, rank), []).append(rank)
    return by_reason


def _why_no_dump(side: SideFiles, rank: int) -> str:
    """Return why there is no readable dump of a rank; empty if this is not known."""
    if rank in side.outdated:
        return _OUTDATED
    if end := side.end(rank):
        return format_ending(end)
    answer = side.answer(rank)
    return STATUSES.get(answer.status, answer.status) if answer else ""


_MOST_CAUSES, _MOST_LOCATIONS = 3, 4
_UNREADABLE_FACTOR = 0.85
"""The confidence is multiplied by this factor if a dump is unreadable, as that dump may hold the cause."""
_HEALTHY_CONFIDENCE, _UNKNOWN_CONFIDENCE, _CLEAN_END_CONFIDENCE = 0.8, 0.2, 0.95
_BLINDING = (Lack.GROUP_NAMES, Lack.FIRST_PENDING_OPERATION)
"""The information without which dumps can look healthy although the job hangs."""


def verdict(context: HangContext, causes: Sequence[Cause]) -> Verdict:
    """Return the verdict on a hang; its class is the class of the first of `causes`, which may be empty."""
    if not causes:
        return _without_cause(context)
    if all(c.kind is HangClass.SLOW for c in causes) and context.side.all_ended_cleanly(context.job.world_size):
        return ended_cleanly(context, causes)
    first = causes[0]
    # Ranks without a dump are named only where no culprit is known.
    known = [c for c in causes if c.kind is not HangClass.UNKNOWN]
    is_harmless = first.kind is HangClass.SLOW or first.reason is Reason.AFTER_END
    status = Status.WARNING if is_harmless else Status.ERROR
    factor = _UNREADABLE_FACTOR if context.job.unreadable else 1.0
    return Verdict(
        status=status if known else Status.UNKNOWN,
        kind=first.kind,
        ranks=sorted({rank for c in known for rank in c.ranks}),
        sentence="; ".join(with_victims(c) for c in (known or causes)[:_MOST_CAUSES]),
        confidence=round(first.culprit.confidence * factor, 2),
        missing=missing(context),
        failure=entry_of(first).id,
    )


def first_sentence(context: HangContext) -> str:
    """Return, as a sentence, what the first dumps of a job show while others are still being read.

    The sentence names the causes that these dumps prove, or else the locations of their ranks.
    """
    causes = [cause for cause in find_causes(context) if cause.kind is not HangClass.UNKNOWN]
    return verdict(context, causes).sentence if causes else f"no culprit among them yet: {locations(context)}"


def ended_cleanly(context: HangContext, slow: Sequence[Cause] = ()) -> Verdict:
    """Return the verdict on a job in which all ranks ended cleanly; `slow` are causes that only slowed the job down."""
    ranks = list(range(context.job.world_size))
    step = max((beat.step for rank in ranks if (beat := context.side.last_beat(rank))), default=0)
    end = f"{rank_names(ranks)} ended cleanly" + (f" after {quantity(step, 'step')}" if step else "")
    return Verdict(
        status=Status.OK,
        kind=HangClass.HEALTHY,
        sentence="; ".join([end, *(title(cause) for cause in slow[:_MOST_CAUSES])]),
        confidence=_CLEAN_END_CONFIDENCE,
    )


def _without_cause(context: HangContext) -> Verdict:
    """Return the verdict on a job for which no cause of a hang was found.

    The verdict is healthy if the dumps would have shown a hang, else unknown. It is also unknown if a rank timed out
    while waiting, or if the job had stalled.
    """
    job, side = context.job, context.side
    if side.all_ended_cleanly(job.world_size):
        return ended_cleanly(context)
    gave_up = sorted(rank for rank, end in side.exits.items() if is_victim(end))
    is_blind = any(lack in _BLINDING for lack in job.lacks)
    has_few_dumps = len(job.ranks) * 2 <= job.world_size
    has_no_operation = not any(state.ops for state in job.ranks.values())
    stalled = _has_stalled(context)
    absent = _find_unseen(context)
    # Where two rounds of dumps were taken, they have shown that the ranks went on.
    waits = [] if side.collection else [node for node, ranks in context.graph.absent.items() if ranks]
    is_unknown = bool(gave_up) or is_blind or has_few_dumps or has_no_operation or stalled or bool(absent or waits)
    sentence = "the dumps do not show who waits for whom" if is_unknown else "no rank waits for a different rank"
    if gave_up:
        why = format_exception(side.exits[gave_up[0]])
        sentence = f"{rank_names(gave_up)} gave up waiting ({why}), and the dumps do not show for whom"
    elif stalled:
        sentence = f"the job stopped making progress, but no rank waits for a different rank: {locations(context)}"
    elif waits and not absent:
        sentence = "the dumps were taken at different moments: some show operations that others do not show yet"
    elif not job.ranks and side.stack_files:
        sentence = f"{locations(context)}; stacks alone do not show who waits for whom"
    elif absent and not is_blind and not has_no_operation:
        verb = agree(absent, "it hangs, has died or is well", "they hang, have died or are well")
        dump = "readable dump" if job.unreadable else "dump"
        sentence = f"there is no {dump} of {rank_names(absent)}, so nothing shows whether {verb}; no other rank waits"
    return Verdict(
        status=Status.UNKNOWN if is_unknown else Status.OK,
        kind=HangClass.UNKNOWN if is_unknown else HangClass.HEALTHY,
        sentence=sentence,
        confidence=_UNKNOWN_CONFIDENCE if is_unknown else _HEALTHY_CONFIDENCE,
        missing=missing(context),
    )


def _find_unseen(context: HangContext) -> list[int]:
    """Return the ranks without a readable dump that did not end cleanly either, ascending."""
    ranks = range(min(context.job.world_size, MOST_RANKS))
    return [rank for rank in ranks if rank not in context.job.ranks and not context.side.ended_cleanly(rank)]


def _has_stalled(context: HangContext) -> bool:
    """Return whether dumps were taken because the job made no progress, and no rank has made progress since."""
    side, ranks = context.side, range(context.job.world_size)
    is_stall = side.collection is not None and side.collection.reason == CollectionReason.STALLED
    return is_stall and not any(side.has_moved_past(rank) or _has_moved_between_rounds(side, rank) for rank in ranks)


def _has_moved_between_rounds(side: SideFiles, rank: int) -> bool:
    answers = (number.ranks.get(rank) for number in side.rounds)
    beats = {(a.heartbeat.step, a.heartbeat.phase) for a in answers if a and a.heartbeat}
    return len(beats) > 1


def locations(context: HangContext) -> str:
    return "; ".join(map(format_location, find_locations(context.job, context.side)[:_MOST_LOCATIONS]))
