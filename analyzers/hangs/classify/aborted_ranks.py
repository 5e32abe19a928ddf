"""Find the rank that passed a tensor of the wrong size to a collective, after gloo aborted a rank because sizes differ.

Gloo aborts the rank that receives more bytes than it expects, but this rank need not be the one that erred. If the
ranks were at different source lines when they lost the connection, the lines decide who erred; otherwise the aborted
rank's neighbour in gloo's ring may be wrong, too.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from analyzers.hangs.classify.cause import Cause, HangContext, RanksInOp
from analyzers.hangs.classify.differing_programs import blame_divergence
from analyzers.hangs.graph.divergence import Divergence, comparable, elements, find_divergence
from analyzers.hangs.model import Frame, Job, Op, Reason, user_frame
from analyzers.hangs.reading.exits import RankEnd, is_victim
from analyzers.hangs.reading.side_files import SideFiles

_SCALAR_BYTES = 8
_INNERMOST_FRAMES = 3
_LAST_COLLECTIVES = 2
"""A difference between ranks may explain an abort if it is at most this many collectives before the last common one."""
_RATIO_TOLERANCE = 0.1
"""Two ratios of tensor sizes count as equal if they differ by at most this; gloo rounds the parts of a tensor."""
_ONE_WAY = {"broadcast", "scatter", "gather", "reduce", "send", "recv"}
"""Operations in which some ranks only send: these ranks may already be at a later line than the others."""


def with_sizes(context: HangContext, cause: Cause, end: RankEnd) -> Cause:
    """Return a copy of `cause`, which blames an aborted rank, with other culprits if the source lines show others.

    `end` describes the rank that gloo aborted. If most ranks are at its line, the ranks at other lines are blamed
    instead. If the lines do not decide, the aborted rank's neighbour in gloo's ring may be blamed, too.
    """
    return _with_ranks_elsewhere(context, cause, end) or _with_neighbour(context, cause, end)


def blame_differing_dumps(context: HangContext, end: RankEnd) -> Cause | None:
    """Return a `Cause` that blames ranks whose dumps differ in one of their last collectives, if gloo aborted a rank.

    The aborted rank (`end`) left no dump, and may be innocent: perhaps it only received a tensor of the wrong size. If
    the other ranks' dumps do not show who is wrong, the ranks at the aborted rank's line count as right. The result is
    None if the dumps agree, or if nothing shows who is wrong.
    """
    job = context.job
    for number, group in enumerate(job.groups):
        states = [job.ranks[rank] for rank in group.ranks if rank in job.ranks and rank != end.rank]
        if end.rank not in group.ranks or not states:
            continue
        last = min(state.enqueued(number) for state in states)
        divergence = find_divergence(job, number, last + 1)
        if divergence is None or end.rank in divergence.members:
            continue
        if divergence.seq < last - _LAST_COLLECTIVES and not _differ_at(job, number, last, divergence.members):
            continue
        decided = _decide_by_line(job, divergence, user_frame(end.stack)) or divergence
        decided = decided if decided.culprits else _decide_by_size(job, divergence, end.sizes) or decided
        if decided.culprits:
            return blame_divergence(context, decided, [end.rank])
    return None


def _differ_at(job: Job, group: int, seq: int, ranks: Sequence[int]) -> bool:
    """Return whether these ranks issued different operations as collective `seq` of a group, as far as recorded.

    Where they differ from an earlier collective on, gloo may have completed those in between with wrong data.
    """
    issued = (job.ranks[rank].collective(group, seq) for rank in ranks)
    return len({comparable(job.signature(op)) for op in issued if op}) > 1


def _decide_by_line(job: Job, divergence: Divergence, line: Frame | None) -> Divergence | None:
    """Return a copy of `divergence` that blames the ranks at lines other than `line`, where gloo aborted a rank.

    A divergence describes the different operations that members of a group issued under one sequence number. The result
    is None if none or all of its ranks are at `line`, or if more of them are elsewhere.
    """
    agreeing = [variant for variant in divergence.variants if line and job.line(variant.op) == line]
    odd = [variant for variant in divergence.variants if variant not in agreeing]
    culprits = sorted(rank for variant in odd for rank in variant.ranks)
    agreed = sum(len(variant.ranks) for variant in agreeing)
    if not agreeing or not 0 < len(culprits) <= agreed:
        return None
    reason = Reason.LINE_OF_ABORTED
    return replace(divergence, culprits=culprits, reason=reason, issued=odd[0].op, expected=agreeing[0].op)


def _decide_by_size(job: Job, divergence: Divergence, sizes: tuple[int, int] | None) -> Divergence | None:
    """Return a copy of `divergence` that blames the ranks with the larger of two tensors, if gloo's sizes show that.

    `sizes` are the bytes that the aborted rank received and expected. They are of parts of tensors, so only their ratio
    counts. If it is that of the two tensors, the aborted rank has the smaller one, too, and the larger one is the odd
    one. The result is None if the ratios differ, or if more ranks have the larger tensor than the smaller one.
    """
    if sizes is None or len(divergence.variants) != 2:
        return None
    small, large = sorted(divergence.variants, key=lambda variant: elements(job.signature(variant.op).input_sizes))
    few, many = (elements(job.signature(variant.op).input_sizes) for variant in (small, large))
    received, expected = sizes
    if len(large.ranks) > len(small.ranks) or abs(many * expected - few * received) > _RATIO_TOLERANCE * few * received:
        return None
    reason, culprits = Reason.SIZE_OF_ABORTED, sorted(large.ranks)
    return replace(divergence, culprits=culprits, reason=reason, issued=large.op, expected=small.op)


def _with_ranks_elsewhere(context: HangContext, cause: Cause, end: RankEnd) -> Cause | None:
    """Return a copy of `cause` that blames ranks at other lines than the aborted rank, if most ranks are at its line.

    The blamed ranks were in another collective than the aborted rank (`end`). The result is None if all ranks were at
    one line, or if the aborted rank is not in the majority. It is also None for collectives such as a broadcast: some
    ranks leave them before others, so a rank at a later line may be right.
    """
    if any(f.name in _ONE_WAY for f in end.stack[:_INNERMOST_FRAMES]):
        return None
    own = user_frame(end.stack)
    at: dict[Frame | None, list[int]] = defaultdict(list, {own: [end.rank]})
    for rank, exit_file in context.side.exits.items():
        if is_victim(exit_file) and exit_file.traceback:
            at[user_frame(exit_file.traceback)].append(rank)
    odd = sorted(rank for line, ranks in at.items() if line != own for rank in ranks)
    # A rank whose line is unknown may be at the same line as the aborted one.
    if own is None or not odd or None in at or len(at[own]) <= context.job.world_size / 2:
        return None
    sides = [RanksInOp(sorted(ranks), "", "", line, "", 0, p2p=False) for line, ranks in at.items()]
    frames = context.side.exits[odd[0]].traceback
    culprit = msgspec.structs.replace(cause.culprit, ranks=odd, victims=sorted(at[own]), frames=frames)
    return replace(cause, culprit=culprit, sides=tuple(sides))


def _with_neighbour(context: HangContext, cause: Cause, end: RankEnd) -> Cause:
    """Return a copy of `cause` that, besides an aborted rank, also blames its neighbour if the neighbour may be wrong.

    Gloo aborts the rank whose tensor is smaller (`end`); the larger tensor came from this rank's neighbour in gloo's
    ring. With two ranks, either may be wrong. With more ranks, only the aborted rank is blamed in three cases: the
    neighbour waits at a different line; a third rank recorded the same collective as the neighbour; or the aborted
    rank's buffer holds a scalar and so belongs to a different collective. Only the neighbour is blamed if all third
    ranks recorded tensors of the aborted rank's size.
    """
    size, other = context.job.world_size, find_place_of_victims(context.side)
    own = place_of([end.rank], end.stack)
    # all_reduce receives from the next rank, all_gather from the one before.
    step = -1 if any("gather" in f.name for f in end.stack[:1]) else 1
    neighbour = (end.rank + step) % size
    is_scalar = end.sizes is not None and end.sizes[1] <= _SCALAR_BYTES
    is_elsewhere = own.line is None or other is None or own.line != other.line
    if other is None or (size > 2 and (is_elsewhere or is_scalar or _is_confirmed(context.job, neighbour, end.rank))):
        return _with_places(context, cause, own, other)
    if size > 2 and _is_alone(context.job, neighbour, end):
        return _with_only(context, cause, neighbour)
    ranks = sorted({end.rank, neighbour})
    victims = [rank for rank in range(size) if rank not in ranks]
    culprit = msgspec.structs.replace(cause.culprit, ranks=ranks, victims=victims)
    return replace(cause, culprit=culprit, sides=(own, replace(other, ranks=[neighbour])))


def _with_places(context: HangContext, cause: Cause, own: RanksInOp, other: RanksInOp | None) -> Cause:
    """Return a copy of `cause` with the lines of the aborted rank (`own`) and of the others, if they differ.

    `other` is the place of the first rank that lost its connection. In an operation such as a broadcast some ranks go
    on to later lines, so that their lines say nothing.
    """
    frames = cause.culprit.frames[:_INNERMOST_FRAMES]
    if (
        other is None
        or None in (own.line, other.line)
        or own.line == other.line
        or any(f.name in _ONE_WAY for f in frames)
    ):
        return cause
    exits = context.side.exits.items()
    there = sorted(r for r, e in exits if is_victim(e) and user_frame(e.traceback) == other.line and r not in own.ranks)
    return replace(cause, sides=(own, replace(other, ranks=there)))


def _with_only(context: HangContext, cause: Cause, rank: int) -> Cause:
    """Return a copy of `cause` that blames only `rank`, with the stack of its exception.

    All other ranks are its victims.
    """
    exit_file = context.side.exits.get(rank)
    victims = [other for other in range(context.job.world_size) if other != rank]
    frames = exit_file.traceback if exit_file else []
    return replace(cause, culprit=msgspec.structs.replace(cause.culprit, ranks=[rank], victims=victims, frames=frames))


def _last_collective(job: Job, rank: int) -> Op | None:
    state = job.ranks.get(rank)
    return max((op for op in state.ops if not op.p2p), key=lambda op: op.created_ns, default=None) if state else None


def _is_alone(job: Job, rank: int, end: RankEnd) -> bool:
    """Return whether only `rank` passed a larger tensor: all third ranks recorded tensors of the aborted rank's size.

    A third rank is any rank except `rank` and the aborted one (`end`). The aborted rank left no dump, but gloo printed
    how many bytes of a part of the tensor it received (from `rank`) and how many it expected. The ratio of these
    numbers equals the ratio of the tensor sizes of the two ranks.
    """
    last = _last_collective(job, rank)
    if last is None or not end.sizes:
        return False
    issued = [job.ranks[r].collective(last.group, last.seq) for r in job.ranks if r not in (rank, end.rank)]
    received, expected = end.sizes
    own = elements(job.signature(last).input_sizes)
    others = [elements(job.signature(op).input_sizes) for op in issued if op is not None]
    # Multiplied out, because a size may be 0.
    is_like_aborted = [abs(other * received - own * expected) <= _RATIO_TOLERANCE * own * expected for other in others]
    return bool(others) and own > max(others) and all(is_like_aborted)


def _is_confirmed(job: Job, rank: int, aborted: int) -> bool:
    """Return whether a third rank recorded the last collective of `rank` with the same sizes and types.

    If so, `rank` passed the right tensor, and the aborted rank a wrong one. A third rank is any rank except `rank` and
    `aborted`.
    """
    last = _last_collective(job, rank)
    if last is None:
        return False
    others = (job.ranks[r].collective(last.group, last.seq) for r in job.ranks if r not in (rank, aborted))
    same = comparable(job.signature(last))
    return any(op is not None and comparable(job.signature(op)) == same for op in others)


def place_of(ranks: list[int], stack: list[Frame]) -> RanksInOp:
    """Return a `RanksInOp` with `ranks` and the user's line in `stack`, for ranks whose operation is not known."""
    return RanksInOp(ranks, "", "", user_frame(stack), "", 0, p2p=False)


def find_place_of_victims(side: SideFiles) -> RanksInOp | None:
    """Return the line of user code at which the first rank lost its connection or timed out, as a `RanksInOp`.

    The result contains this rank and its line; it is None if no error of such a rank has a traceback.
    """
    gave_up = [end for end in side.exits.values() if is_victim(end) and end.traceback]
    first = min(gave_up, key=lambda end: end.time_ns, default=None)
    return place_of([first.rank], first.traceback) if first else None
