"""Compare two rounds of dumps of the same ranks: a rank that made progress between them is slow, not hung."""

from collections.abc import Sequence
from dataclasses import dataclass

from analyzers import store
from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.model import HangClass, Job, Reason
from analyzers.hangs.reading.dump_sets import DumpSet
from analyzers.hangs.reading.job import load_job
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import CollectionReason, Heartbeat

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


def check_progress(
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


def drop_stale(causes: Sequence[Cause], side: SideFiles) -> list[Cause]:
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
