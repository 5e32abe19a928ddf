"""Decide whether an operation may still have been running normally when the dumps were taken, rather than hung."""

from itertools import pairwise

from analyzers.hangs.classify.context import HangContext
from analyzers.hangs.graph.wait_graph import OpNode
from analyzers.hangs.model import Job

_RANKS_SAMPLED = 64
_SHORTEST_HANG_NS = 1_000_000_000
"""The time in ns before the dumps within which an issued operation may be slow rather than hung."""


def is_newer_than_skew(context: HangContext, node: OpNode) -> bool:
    """Return whether the last rank issued an operation so shortly before the dumps that it may be slow, not hung.

    The limit is one second, or the time between the first and the last dump if this is longer.
    """
    answered = [t for rank in context.job.ranks if (t := context.side.answered_ns(rank)) is not None]
    current_ops = context.operations_at(node)
    # NCCL retires an operation that is not done only when it times out: that one hung.
    if not answered or any(op.retired for op in current_ops):
        return False
    skew = max(answered) - min(answered)
    return min(answered) - max(op.created_ns for op in current_ops) <= max(skew, _SHORTEST_HANG_NS)


def is_in_flight(context: HangContext, node: OpNode) -> bool:
    """Return whether the operation `node` began so shortly before the dumps that it may not be hung.

    The limit is twice the longest pause between operations of the ranks in it, plus the time between the first and the
    last dump. This rule is only for dumps about whose time nothing but the file times is known, so the result is False
    if a file records when the dumps were requested. It is also False if the watchdog has given the operation up.
    """
    job, current_ops = context.job, context.operations_at(node)
    if not job.taken_ns or context.side.collection or not current_ops or any(op.retired for op in current_ops):
        return False
    # The ranks of one operation run alike, so a sample of them is enough.
    usual = max(_longest_pause_ns(job, op.rank) for op in current_ops[:_RANKS_SAMPLED])
    taken = job.taken_ns.values()
    return min(taken) - min(op.created_ns for op in current_ops) <= 2 * usual + max(taken) - min(taken)


def _longest_pause_ns(job: Job, rank: int) -> int:
    """Return the longest time in nanoseconds in which a rank started no operation, as its dump shows it.

    That is the longest time from one start to the next, or the longest duration of a completed operation if that is
    longer.
    """
    ops = job.ranks[rank].ops
    pauses = (after.created_ns - before.created_ns for before, after in pairwise(ops))
    return max([*pauses, *(op.completed_ns - op.created_ns for op in ops if op.done)], default=0)
