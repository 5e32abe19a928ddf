"""The second look: what moved between two dumps of the same ranks was slow, not hung."""

from collections.abc import Sequence

import msgspec

from analyzers import store
from analyzers.hangs.job import DumpSet, load_job
from analyzers.hangs.model import Culprit, Job
from analyzers.hangs.side import Side

AFTER_LOOKING_TWICE = 0.05


def moved(culprits: Sequence[Culprit], first: Job, dumps: DumpSet, side: Side, options: store.Options) -> list[Culprit]:
    """The culprits in the light of the second look, where one was taken."""
    if len(dumps.rounds) < 2 or not culprits:
        return list(culprits)
    second = load_job(dumps.rounds[1], side, options)
    return [reconsidered(culprit, first, second) for culprit in culprits]


def reconsidered(culprit: Culprit, first: Job, second: Job) -> Culprit:
    """Slow if the ranks that waited for the culprit went on; firmer if nothing changed."""
    ranks = [rank for rank in {*culprit.ranks, *culprit.victims} if rank in first.ranks and rank in second.ranks]
    if not ranks or culprit.kind in ("dead", "unknown"):
        return culprit
    went_on = [rank for rank in ranks if progress(second, rank) > progress(first, rank)]
    if len(went_on) == len(ranks):
        detail = "all of them issued new operations between the two looks"
        return msgspec.structs.replace(culprit, kind="slow", detail=detail, confidence=0.8)
    if not went_on:
        return msgspec.structs.replace(
            culprit, confidence=round(min(0.99, culprit.confidence + AFTER_LOOKING_TWICE), 2)
        )
    return culprit


def progress(job: Job, rank: int) -> int:
    """A number that grows with every operation that a rank issues."""
    return max((op.created_ns for op in job.ranks[rank].ops), default=0)
