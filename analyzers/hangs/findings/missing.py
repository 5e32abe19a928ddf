"""List the evidence that would have made the verdict more certain: one phrase for each gap, with its ranks."""

from collections.abc import Mapping

from analyzers.hangs.classify.cause import HangContext
from analyzers.hangs.findings.wording import format_ending
from analyzers.hangs.graph.divergence import MOST_RANKS
from analyzers.hangs.model import GroupSource, Job, Lack
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import AnswerStatus
from analyzers.words import agree, rank_names

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
