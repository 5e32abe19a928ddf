"""Choose the hypothesis that explains the end of a job best: the one that leaves the fewest others unexplained.

A hypothesis explains another one if the catalogue says so of their entries, or if one is a failure of its own and the
other a usual consequence of any failure, such as a lost connection. A hypothesis that another one explains is no root.
Among the roots the one wins that leaves the fewest others unexplained, then the one nearest to a rank's own failure,
then the earliest.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.case.facts import CUT_OFF
from analyzers.case.hypothesis import Hypothesis, Tier
from analyzers.failures.catalogue import shown_by
from analyzers.failures.entry import Failure, text_of

_FAILURES = {Tier.OWN_FAILURE, Tier.NATIVE_CRASH, Tier.SOFT_HARDWARE}
_CONSEQUENCES = {
    Tier.KILLED, Tier.NAMED_BY_OTHERS, Tier.NETWORK, Tier.UNREACHED, Tier.TIMEOUT, Tier.STUCK_WATCHDOG,
    Tier.EXIT_CODE, Tier.VAGUE, Tier.LOST_CONNECTION, Tier.ABORTED,
}  # fmt: skip
"""What ranks report when another one has failed, or when a launcher ends them."""


_COLLECTIVES = re.compile(r"distributed_c10d\.py|c10d_logger\.py|ProcessGroup")
_WEIGHED_AT_MOST = 100
"""The number of hypotheses, the nearest to a rank's own failure first, that are weighed against each other."""


@dataclass(frozen=True)
class Arbitration:
    """The winning hypothesis, what follows from it, and what does not (`independent`)."""

    winner: Hypothesis
    explained: list[Hypothesis]
    independent: list[Hypothesis]


def arbitrate(hypotheses: Sequence[Hypothesis]) -> Arbitration:
    """Return which of the hypotheses (at least one, the earliest first) explains the end of the job best."""
    hypotheses, rest = hypotheses[:_WEIGHED_AT_MOST], hypotheses[_WEIGHED_AT_MOST:]
    count = len(hypotheses)
    entries = [_entries_of(one) for one in hypotheses]
    edges = {
        (a, b)
        for a in range(count)
        for b in range(count)
        if a != b and _explains(hypotheses[a], hypotheses[b], entries[a], entries[b])
    }
    covered = [_reached(start, edges) for start in range(count)]
    roots = [n for n in range(count) if not any(n in covered[m] and m not in covered[n] for m in range(count))]
    best = min(roots, key=lambda n: (hypotheses[n].order[0], count - len(covered[n]), hypotheses[n].order))
    others = [n for n in range(count) if n != best]
    return Arbitration(
        hypotheses[best],
        [hypotheses[n] for n in others if n in covered[best]],
        [*(hypotheses[n] for n in others if n not in covered[best]), *rest],
    )


def _entries_of(hypothesis: Hypothesis) -> list[Failure]:
    """Return the entries of the catalogue that the texts of a hypothesis show."""
    return list(dict.fromkeys(entry for event in hypothesis.events for entry in shown_by(text_of(event))[:1]))


def _explains(a: Hypothesis, b: Hypothesis, entries: Sequence[Failure], others: Sequence[Failure]) -> bool:
    """Return whether `b` follows from `a`, by their entries in the catalogue or else by their tiers."""
    if a.order[0] != b.order[0]:
        return False
    if _was_cut_short_by(a, b):
        return True
    if _was_cut_short_by(b, a):
        return False
    if any(mine.does_explain(theirs, b) for mine in entries for theirs in others or (None,)):
        return True
    if any(theirs.does_explain(mine, a) for theirs in others for mine in entries or (None,)):
        return False
    if b.role.tier in _CONSEQUENCES:
        return a.role.tier < b.role.tier
    if a.role.tier is b.role.tier is Tier.STOPPED:
        # Lines of one and the same shutdown: who reports it first also reports it last.
        return a.order < b.order
    return a.role.tier is Tier.HARDWARE and b.role.tier in _FAILURES


def _was_cut_short_by(failure: Hypothesis, wait: Hypothesis) -> bool:
    """Return whether a traceback without its last line stands above the first report of ranks that waited in vain.

    It is of another rank, whose failure let them wait. The traceback of a wait itself ends in the code of collectives.
    """
    lead, first = failure.lead, min(wait.events, key=lambda event: event.line)
    is_wait = any(_COLLECTIVES.search(call) for call in lead.calls)
    return (
        lead.message == CUT_OFF
        and bool(lead.source)
        and not is_wait
        and wait.role.tier in (Tier.TIMEOUT, Tier.STUCK_WATCHDOG)
        and lead.path == first.path
        and lead.line <= first.line
        and not set(failure.ranks) & set(wait.ranks)
    )


def _reached(start: int, edges: set[tuple[int, int]]) -> set[int]:
    """Return what `start` explains, directly or by way of what it explains."""
    seen: set[int] = set()
    todo = [start]
    while todo:
        here = todo.pop()
        todo += [b for a, b in edges if a == here and b not in seen and b != start]
        seen |= {b for a, b in edges if a == here and b != start}
    return seen
