"""The second look: what moved between two dumps of the same ranks was slow, or not hung at all."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from analyzers import store
from analyzers.hangs.model import Culprit, Job
from analyzers.hangs.reading.dump_sets import DumpSet
from analyzers.hangs.reading.job import load_job
from analyzers.hangs.reading.side_files import Side
from analyzers.hangs.reading.side_formats import Heartbeat

AFTER_LOOKING_TWICE = 0.05


@dataclass(frozen=True)
class Movement:
    """Two looks at the same ranks; `second` is None where none of them left a dump at the second."""

    first: Job
    second: Job | None
    side: Side

    def of(self, rank: int) -> bool | None:
        """Whether a rank went on: new operations, or a younger heartbeat, which one that has ended left behind too."""
        before, after = (self._beat(rank, look) for look in (0, 1))
        dumped = self.second and rank in self.first.ranks and rank in self.second.ranks
        issued = progress(self.second, rank) > progress(self.first, rank) if self.second and dumped else None
        if before and after:
            return after.time_ns > before.time_ns or bool(issued)
        return issued

    def _beat(self, rank: int, look: int) -> Heartbeat | None:
        rounds = self.side.collection.rounds if self.side.collection else []
        asked = rounds[look].ranks.get(rank) if look < len(rounds) else None
        return asked.heartbeat if asked else None


def moved(culprits: Sequence[Culprit], first: Job, dumps: DumpSet, side: Side, options: store.Options) -> list[Culprit]:
    """The culprits in the light of the second look, where one was taken."""
    looks = max(len(dumps.rounds), len(side.collection.rounds) if side.collection else 0)
    if looks < 2 or not culprits:
        return list(culprits)
    second = load_job(dumps.rounds[1], side, options) if len(dumps.rounds) > 1 else None
    movement = Movement(first, second, side)
    return [found for culprit in culprits if (found := reconsidered(culprit, movement))]


def reconsidered(culprit: Culprit, movement: Movement) -> Culprit | None:
    """Firmer if nothing changed. Slow if the culprit and all that waited for it went on; if they were not even
    stalled, as somebody looked at a job that moves, they are nothing to speak of.
    """
    if culprit.kind in ("dead", "unknown"):
        return culprit
    seen = [went for rank in {*culprit.ranks, *culprit.victims} if (went := movement.of(rank)) is not None]
    if not seen or (any(seen) and not all(seen)):
        return culprit
    if not any(seen):
        return msgspec.structs.replace(
            culprit, confidence=round(min(0.99, culprit.confidence + AFTER_LOOKING_TWICE), 2)
        )
    if movement.side.collection and movement.side.collection.reason == "asked":
        return None
    detail = "all of them went on between the two looks"
    return msgspec.structs.replace(culprit, kind="slow", detail=detail, confidence=0.8)


def progress(job: Job, rank: int) -> int:
    """A number that grows with every operation that a rank issues."""
    return max((op.created_ns for op in job.ranks[rank].ops), default=0)
