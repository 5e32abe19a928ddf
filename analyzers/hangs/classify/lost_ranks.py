"""Recognise ranks that left, were left alone, whose node is lost, or that messages name."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.model import Culprit, Frame, HangClass, Reason, user_frame
from analyzers.hangs.reading.exits import Ending, is_victim
from analyzers.hangs.reading.side_formats import ExitFile
from analyzers.hangs.reading.thread_stacks import read_threads
from analyzers.node_health import LostNode

# Find ranks whose program has ended while their process goes on, because a non-daemon thread still runs.
#
# At exit, Python waits for such threads in `threading._shutdown`. The other ranks may have ended already; then no
# rank waits in an operation, only the launcher waits.

CONFIDENCE = 0.8


def find_kept_alive(context: HangContext) -> list[Cause]:
    """Return a `Cause` for each rank whose stacks show that its program has ended and a thread keeps it alive."""
    side = context.side
    running = [r for r in side.stack_files if side.end(r) is None and not side.ended_cleanly(r)]
    found = ((rank, read_threads(side.stack_files[rank], rank)) for rank in sorted(running))
    return [_blame_thread(rank, threads) for rank, threads in found if any(map(_is_at_end, threads))]


def _is_at_end(stack: Sequence[Frame]) -> bool:
    """Return whether a thread with this stack is waiting at Python's exit for the other threads to end."""
    return any(f.name == "_shutdown" and f.filename.endswith("threading.py") for f in stack)


def _blame_thread(rank: int, threads: Sequence[list[Frame]]) -> Cause:
    """Return a `Cause` for a rank that is kept alive by a thread; `threads` are the stacks of all its threads.

    The cause has the stack of the first thread that still runs and has a frame to name.
    """
    others = (stack for stack in threads if not _is_at_end(stack))
    frames = next((stack for stack in others if user_frame(stack)), [])
    culprit = Culprit(ranks=[rank], kind=HangClass.HOST_STUCK, frames=frames, confidence=CONFIDENCE)
    return Cause(culprit, Reason.KEPT_ALIVE)


# Find ranks that issued a collective after most ranks had ended normally.
#
# Such a rank issued one collective too many. For example, it alone saves a checkpoint after the training, and saving
# ends in a barrier. In the opposite case a minority of ranks ends before the others: these ranks issued one
# collective too few.

_LEFT_ALONE_CONFIDENCE = 0.7
"""The confidence of the verdict; it is below the default, because the ranks that ended may have left too early."""


def find_left_alone(context: HangContext, causes: Sequence[Cause]) -> list[Cause]:
    """Return, in a list, a `Cause` that blames a minority of ranks that issued a collective after the others had ended.

    The majority ended normally. The minority ended because it lost a connection or timed out. `causes` are the causes
    that other rules have found. The list is empty if one of `causes` blames a rank for anything but a normal end, or if
    most ranks of the job did not end normally.
    """
    if any(c.end is None or c.end.ending is not Ending.NO_ERROR for c in causes):
        return []
    # By the marks of clean ends alone: a rank may mark its end just after it closed its connections.
    alone = [rank for rank in range(context.job.world_size) if not context.side.ended_cleanly(rank)]
    errors = [context.side.exits.get(rank) for rank in alone]
    is_minority = 0 < len(alone) < context.job.world_size - len(alone)
    if not is_minority or not all(error and is_victim(error) for error in errors):
        return []
    frames = errors[0].traceback if errors[0] else []
    culprit = Culprit(ranks=alone, kind=HangClass.MISMATCH, frames=frames, confidence=_LEFT_ALONE_CONFIDENCE)
    return [Cause(culprit, Reason.LEFT_ALONE)]


# Blame nodes that stopped answering: they died, or lost their network.
#
# A lost node explains ranks without a dump only if nothing else explains the hang: a node may also be cut off while
# all ranks wait for a rank that is stuck elsewhere.


def blame_lost_nodes(context: HangContext, causes: Sequence[Cause]) -> list[Cause]:
    """Return `causes` in which a lost node is blamed instead of each of its ranks without a dump.

    Other causes stay. If `causes` is empty, lost nodes are blamed only if some rank ended because it gave up waiting
    for another.
    """
    lost = [node for node in context.side.gaps.lost if set(node.ranks).difference(context.job.ranks)]
    silent = [cause for cause in causes if cause.reason is Reason.NO_DUMP]
    gave_up = sorted(rank for rank, end in context.side.exits.items() if is_victim(end))
    if not lost or (causes and not silent) or not (causes or gave_up):
        return list(causes)
    victims = sorted({rank for cause in silent for rank in cause.victims}.union(gave_up))
    blamed = [node for node in lost if not silent or any(set(node.ranks) & set(cause.ranks) for cause in silent)]
    explained = {rank for node in blamed for rank in node.ranks}
    others = [left for cause in causes if (left := without(cause, explained))]
    return [*(lost_node(context, node, silent, victims) for node in blamed), *others]


def without(cause: Cause, ranks: set[int]) -> Cause | None:
    """Return `cause` without `ranks` as culprits, if it blames ranks for leaving no dump; None if no culprit remains.

    A cause of any other kind is returned unchanged.
    """
    if cause.reason is not Reason.NO_DUMP or ranks.isdisjoint(cause.ranks):
        return cause
    left = [rank for rank in cause.ranks if rank not in ranks]
    return cause.with_ranks(left) if left else None


def lost_node(context: HangContext, node: LostNode, silent: Sequence[Cause], victims: Sequence[int]) -> Cause:
    """Return a `Cause` which says that `node` was lost; all of its ranks are culprits, and `victims` wait for them.

    `silent` are the causes that blame ranks for leaving no dump. The first of these that blames a rank of this node
    shows in which operation the victims wait; without one the operation is unknown.
    """
    steps = [beat.step for rank in node.ranks if (beat := context.side.last_beat(rank))]
    found = next((cause.culprit for cause in silent if set(cause.ranks) & set(node.ranks)), None)
    culprit = msgspec.structs.replace(
        found or Culprit(ranks=[], kind=HangClass.DEAD),
        ranks=list(node.ranks),
        kind=HangClass.DEAD,
        victims=[rank for rank in victims if rank not in node.ranks],
        step=max(steps, default=0) or None,
        confidence=CONFIDENCE,
    )
    return Cause(culprit, Reason.LOST_NODE, node=node)


# Find the ranks blamed by PyTorch's own error messages, for jobs whose dumps do not show which rank is missing.

ABSENT = re.compile(r"Ranks? ([\d, ]+?) failed to pass monitoredBarrier")
PARAMETERS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
_NAMED_CONFIDENCE = 0.8


def find_absent_by_name(context: HangContext) -> list[Cause]:
    """Return, in a list, a `Cause` that blames the ranks named as missing in the error of a monitored barrier.

    The list is empty if no error names a rank.
    """
    exits = context.side.exits
    named = {int(rank) for end in exits.values() for match in ABSENT.finditer(end.message) for rank in _ranks_in(match)}
    ranks = sorted(named - exits.keys())
    return [blame(context, HangClass.HOST_STUCK, Reason.NAMED_ABSENT, ranks)] if ranks else []


def _ranks_in(match: re.Match[str]) -> list[str]:
    """Return the rank numbers in the first group of a match, as texts; the group is a list such as `1, 3`."""
    return re.findall(r"\d+", match[1])


def find_other_models(context: HangContext) -> list[Cause]:
    """Return, in a list, a `Cause` that blames ranks whose model has another number of parameters than on most ranks.

    The numbers are in the errors of DDP. Each error compares its rank with only one other rank, so all messages
    together are needed to show which rank is wrong. The list is empty if the errors name no different numbers.
    """
    counts: dict[int, int] = {}
    for end in context.side.exits.values():
        for match in PARAMETERS.finditer(end.message):
            counts |= {int(match[1]): int(match[2]), int(match[3]): int(match[4])}
    usual = Counter(counts.values()).most_common(2)
    if len(usual) < 2:
        return []
    is_tie = usual[0][1] == usual[1][1]
    ranks = sorted(rank for rank, count in counts.items() if is_tie or count != usual[0][0])
    return [blame(context, HangClass.MISMATCH, Reason.OTHER_MODEL, ranks)]


def blame(context: HangContext, kind: HangClass, reason: Reason, ranks: list[int]) -> Cause:
    """Return a `Cause` that blames `ranks`, which are named in error messages; all other ranks are their victims.

    `kind` is the class of the hang, and `reason` says which message it was. The stack of the cause is the traceback of
    the first of `ranks`, or else the stack of its main thread.
    """
    ends = context.side.exits
    culprit = Culprit(
        ranks=ranks,
        kind=kind,
        frames=frames_of(ends.get(ranks[0])) or context.side.main_stack(ranks[0]),
        victims=[rank for rank in range(context.job.world_size) if rank not in ranks],
        confidence=_NAMED_CONFIDENCE,
    )
    return Cause(culprit, reason)


def frames_of(end: ExitFile | None) -> list[Frame]:
    return end.traceback if end else []
