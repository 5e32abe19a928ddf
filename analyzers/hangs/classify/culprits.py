"""Collect all causes of a hang, each once, sorted so that the best explanation comes first."""

from collections.abc import Sequence

import msgspec

from analyzers.hangs.classify.aborted_ranks import blame_differing_dumps, find_place_of_victims, with_sizes
from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.classify.lost_ranks import (
    blame_lost_nodes,
    find_absent_by_name,
    find_kept_alive,
    find_left_alone,
    find_other_models,
)
from analyzers.hangs.classify.root_cause import classify_roots
from analyzers.hangs.classify.skipped_groups import find_skipped_groups
from analyzers.hangs.classify.wrong_messages import find_wrong_messages
from analyzers.hangs.graph.wait_graph import find_roots
from analyzers.hangs.model import Culprit, HangClass, Reason, user_frame
from analyzers.hangs.reading.exits import Ending, RankEnd, is_victim
from analyzers.hangs.reading.side_files import DONE_PHASE, NO_GROUP_PHASE, SideFiles

_MISSING_SHARE = 4
"""If more than one in this many dumps is missing, a common reason is likely.

An example is that the files of a node were not copied.
"""
_UNKNOWN_CONFIDENCE = 0.2
_BEST_FIRST = tuple(HangClass)
_DIFFERENCES = (HangClass.MISMATCH, HangClass.SKIPPED)
_BY_ABORTED = (Reason.LINE_OF_ABORTED, Reason.SIZE_OF_ABORTED)
_BY_RAS = (Reason.RAS_DEAD, Reason.RAS_SILENT)
_WITHOUT_DUMP = (Reason.NO_DUMP, Reason.LOST_DUMP)


def find_causes(context: HangContext) -> list[Cause]:
    """Return the causes of a hang, each once, the best explanation first.

    They come from three sources: the wait-for graph; ranks that died although no other rank was seen waiting for them;
    and further rules that are tried in turn.
    """
    causes = classify_roots(context, find_roots(context.graph))
    causes = _drop_disconnected(context, _excuse_missing_dumps(context, causes))
    causes = _join_deaths(causes, _find_deaths(context))
    causes = find_wrong_messages(context, causes) or causes
    causes = find_left_alone(context, causes) or causes
    # A skipped group comes first: it shifts the numbers of all later groups, and the other rules see only this effect.
    causes = find_skipped_groups(context) or causes or find_absent_by_name(context) or _find_late_aborts(context)
    causes = blame_lost_nodes(context, causes or find_kept_alive(context))
    # Each node of a pair or a ring may lead to the same cause.
    unique = {(c.kind, tuple(c.ranks), c.culprit.group, c.culprit.seq): c for c in causes}
    return sorted(unique.values(), key=lambda c: (_BEST_FIRST.index(c.kind), -len(c.victims), c.ranks))


def _join_deaths(causes: Sequence[Cause], deaths: Sequence[Cause]) -> list[Cause]:
    """Return `causes`, which come from the wait-for graph, followed by the `deaths` that they do not explain.

    `deaths` are causes that blame ranks for having ended. A death is explained if `causes` already blame its ranks. If
    gloo aborted the rank because tensor sizes differ, its death is also explained by a cause that blames ranks for
    different operations. But if the line or tensor of the aborted rank shows which ranks erred, the death replaces such
    causes.
    """
    if any(cause.reason in _BY_ABORTED for cause in deaths):
        return [*(cause for cause in causes if cause.kind not in _DIFFERENCES), *deaths]
    named = {rank for cause in causes for rank in cause.ranks}
    deaths = [cause for cause in deaths if not named.issuperset(cause.ranks)]
    is_explained = any(cause.kind in _DIFFERENCES for cause in causes)
    return [*causes, *(cause for cause in deaths if not (is_explained and _is_by_size(cause)))]


def _is_by_size(cause: Cause) -> bool:
    """Return whether a cause is a death that followed from an abort by gloo for differing tensor sizes."""
    return cause.kind in _DIFFERENCES and cause.reason is not Reason.OTHER_MODEL


def _excuse_missing_dumps(context: HangContext, causes: list[Cause]) -> list[Cause]:
    """Return `causes` without those that blame a likely victim only because its dump is missing.

    A rank without a dump counts as a victim if it shares a process group with a known culprit or its victims. If more
    than a quarter of the dumps are missing for no known reason, all ranks without a dump become one cause of unknown
    class.
    """
    if any(c.reason in _BY_RAS for c in causes):
        # Of the ranks without a dump, RAS knows which no longer answer: the others are alive, and wait.
        causes = [c for c in causes if c.reason is not Reason.NO_DUMP]
    silent = [c for c in causes if c.reason in _WITHOUT_DUMP]
    others = [c for c in causes if c.reason not in _WITHOUT_DUMP]
    known = [c for c in others if c.kind is not HangClass.DEAD]
    waiting_too = set().union(*(_ranks_near(context, other) for other in known))
    silent = [c for c in silent if c.ranks[0] not in waiting_too]
    if len(silent) <= max(1, context.job.world_size // _MISSING_SHARE):
        return [c for c in causes if c.reason not in _WITHOUT_DUMP or c.ranks[0] not in waiting_too]
    ranks = sorted(rank for c in silent for rank in c.ranks)
    waiting = sorted({rank for c in silent for rank in c.victims}.difference(ranks))
    unknown = Culprit(ranks=ranks, kind=HangClass.UNKNOWN, victims=waiting, confidence=_UNKNOWN_CONFIDENCE)
    return [*others, Cause(unknown, Reason.NO_DUMP)]


def _ranks_near(context: HangContext, cause: Cause) -> set[int]:
    """Return the ranks that share a process group with a culprit or its victims.

    If such a rank left no dump, it probably waits, too.
    """
    involved = {*cause.ranks, *cause.victims}
    return {rank for g in context.job.groups if involved.intersection(g.ranks) for rank in g.ranks}


def _drop_disconnected(context: HangContext, causes: list[Cause]) -> list[Cause]:
    """Return `causes` without those that blame ranks which ended because they lost a connection to another rank.

    These causes stay if nothing shows that any other rank is to blame.
    """
    ends = {
        rank: end for c in causes if c.kind is HangClass.DEAD for rank in c.ranks if (end := context.side.end(rank))
    }
    first_hand = [c for c in causes if not any(rank in ends and ends[rank].is_victim for rank in c.ranks)]
    return first_hand if first_hand or any(not end.is_victim for end in context.ends()) else causes


def _find_deaths(context: HangContext) -> list[Cause]:
    """Return causes which say that ranks ended by their own fault, although no rank was seen waiting for them.

    Only the first exception is a cause, because one rank's exception often leads to exceptions of other ranks; running
    out of memory is preferred to other exceptions. A rank that ended normally is to blame only if other ranks timed out
    later.
    """
    if other_models := find_other_models(context):
        return other_models
    ends = [end for end in context.ends() if not end.is_victim]
    by_process = [end for end in ends if end.ending not in (Ending.EXCEPTION, Ending.NO_ERROR)]
    if _is_killed_from_outside(context, by_process):
        return []
    if killed := [end for end in by_process if end.is_killed]:
        # A rank that loses its connection ends with an exit code, as one that failed by itself does.
        by_process = [end for end in by_process if end in killed or end.exit_code <= 0]
    raised = sorted((end for end in ends if end.exit_file), key=lambda end: (not is_out_of_memory(end), end.time_ns))
    groups = _equal_ends(by_process) or _equal_ends(raised)[:1] or _equal_ends(_find_early_ends(context))
    return [_blame_deaths(context, group) for group in groups]


def _equal_ends(ends: Sequence[RankEnd]) -> list[list[RankEnd]]:
    """Return `ends` grouped by how the ranks ended.

    Two ends are equal if the exit code or signal is equal, or the exception and the line that raised it. Ranks that
    ended in the same way did not wait for each other.
    """
    groups: dict[tuple[object, ...], list[RankEnd]] = {}
    for end in ends:
        groups.setdefault(_what_ended(end), []).append(end)
    return list(groups.values())


def _what_ended(end: RankEnd) -> tuple[object, ...]:
    """Return a key that is equal for ranks that ended the same way: exit code, signal, type of exception, line."""
    error = end.exit_file
    line = user_frame(error.traceback) if error else user_frame(end.stack)
    return (end.ending, end.exit_code, end.signal, error.error if error else "", line)


def _find_late_aborts(context: HangContext) -> list[Cause]:
    """Return a `Cause` for each group of ranks that gloo aborted for differing tensor sizes after the dumps were taken.

    In this case the dumps themselves show nothing wrong. Ranks that were aborted at the same line are one group.
    """
    aborts = [end for rank in range(context.job.world_size) if (end := context.side.late_abort(rank))]
    return [_blame_deaths(context, group) for group in _equal_ends([end for end in aborts if end.is_size_abort])]


def _is_killed_from_outside(context: HangContext, ends: Sequence[RankEnd]) -> bool:
    """Return whether `ends` shows that every rank's process exited without an error or signal.

    Then something outside the job ended it, such as a user or a scheduler.
    """
    return len(ends) == context.job.world_size > 1 and all(
        end.ending is Ending.PROCESS_EXITED and not end.signal for end in ends
    )


def _find_early_ends(context: HangContext) -> list[RankEnd]:
    """Return a `RankEnd` for each rank that had ended normally before the first rank timed out waiting for another."""
    side = context.side
    gave_up_ns = min((end.time_ns for end in side.exits.values() if is_victim(end)), default=0)
    beats = side.last_words.beats.items()
    return [
        RankEnd(rank, Ending.NO_ERROR, time_ns=beat.time_ns)
        for rank, beat in beats
        if side.ended_cleanly(rank) and beat.time_ns < gave_up_ns
    ]


def is_out_of_memory(end: RankEnd) -> bool:
    return bool(end.exit_file and end.exit_file.out_of_memory)


def _blame_deaths(context: HangContext, ends: Sequence[RankEnd]) -> Cause:
    """Return a `Cause` that blames the ranks in `ends`, which all ended in the same way; all other ranks are victims.

    If `ends` is a single rank that gloo aborted for differing tensor sizes, the cause may blame other ranks instead:
    those whose operations differ.
    """
    end, ranks = ends[0], sorted(end.rank for end in ends)
    exit_file = end.exit_file
    culprit = Culprit(
        ranks=ranks,
        kind=HangClass.MISMATCH if end.is_size_abort else HangClass.DEAD,
        frames=exit_file.traceback if exit_file else end.stack,
        step=(exit_file.step or None) if exit_file else _find_last_step(context.side, end.rank),  # 0: not in any step
        error=exit_file.error if exit_file else None,
        out_of_memory=is_out_of_memory(end),
        victims=[rank for rank in range(context.job.world_size) if rank not in ranks],
    )
    if _is_after_end(context, ends):
        return Cause(msgspec.structs.replace(culprit, victims=[]), Reason.AFTER_END, end=end)
    reason = Reason.ABORTED if end.is_size_abort else Reason.ENDED
    expected = find_place_of_victims(context.side) if end.ending is Ending.NO_ERROR else None
    cause = Cause(culprit, reason, end=end, elements=end.sizes or (0, 0), expected=expected)
    if not end.is_size_abort or len(ranks) > 1:
        return cause
    return blame_differing_dumps(context, end) or with_sizes(context, cause, end)


def _is_after_end(context: HangContext, ends: Sequence[RankEnd]) -> bool:
    """Return whether ranks were aborted when their training had ended, so that no other rank can miss them.

    All other ranks ended, or had destroyed their process groups, without an error. The aborted ranks themselves mark
    their end only if they come so far, so in a job without other ranks their own mark decides.
    """
    side, ranks = context.side, {end.rank for end in ends}
    if side.exits or any(end.is_size_abort or not end.is_abort for end in ends):
        return False
    others = [rank for rank in range(context.job.world_size) if rank not in ranks]
    beats = [side.last_beat(rank) for rank in others or sorted(ranks)]
    return all(beat is not None and beat.phase in (DONE_PHASE, NO_GROUP_PHASE) for beat in beats)


def _find_last_step(side: SideFiles, rank: int) -> int | None:
    """Return the step that a rank was in at the first round of dumps, by its heartbeat.

    The result is None if the rank has no heartbeat, or was in no step.
    """
    beat = side.heartbeat(rank)
    return (beat.step or None) if beat else None  # 0: not in any step
