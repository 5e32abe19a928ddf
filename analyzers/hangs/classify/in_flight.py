"""Whether an operation was still in flight when the dumps were taken: then that it is not done proves nothing."""

from itertools import pairwise

from analyzers.hangs.classify.context import Scene
from analyzers.hangs.graph.wait_graph import At
from analyzers.hangs.model import Job

YOUNG_SAMPLES = 64


def too_young(scene: Scene, at: At) -> bool:
    """Whether the newest arrival is no older than the dumps are apart: then it was in flight, not hung."""
    asked = [t for rank in scene.job.ranks if (t := scene.side.answered_ns(rank)) is not None]
    fronts = [op for rank in scene.graph.arrived(at) if (op := scene.job.ranks[rank].front)]
    if not asked or any(op.retired for op in fronts):
        return False
    skew = max(asked) - min(asked)
    return min(asked) - max(op.created_ns for op in fronts) <= max(skew, 1_000_000_000)


def young(scene: Scene, at: At) -> bool:
    """Whether an operation was begun no longer before the dumps than this job's operations take.

    Only the files' times tell that, and they are believed where they follow all that the dumps report.
    """
    job = scene.job
    fronts = [op for rank in scene.graph.arrived(at) if (op := job.ranks[rank].front)]
    if not job.taken or scene.side.collection or not fronts or any(op.retired for op in fronts):
        return False
    usual = max(longest_pause(job, op.rank) for op in fronts[:YOUNG_SAMPLES])
    skew = max(job.taken.values()) - min(job.taken.values())
    return min(job.taken.values()) - min(op.created_ns for op in fronts) <= 2 * usual + skew


def longest_pause(job: Job, rank: int) -> int:
    """The longest time that a rank took from one operation to the next, or one took from its issue to its end."""
    ops = job.ranks[rank].ops
    pauses = (after.created_ns - before.created_ns for before, after in pairwise(ops))
    return max([*pauses, *(op.completed_ns - op.created_ns for op in ops if op.done)], default=0)
