"""Find the rank that differs from the others, if each rank has compared itself with only one other rank."""

from collections import Counter
from collections.abc import Sequence

from analyzers.logs.model import LogEvent


def odd_ranks(events: Sequence[LogEvent]) -> list[int]:
    """Return, in a list, the rank that is in most comparisons; empty in case of a tie.

    `events` are the comparisons: PyTorch's debug mode compares a rank with the first rank that differs from it. If rank
    2 passed another shape, ranks 0, 1 and 3 are compared with rank 2, and rank 2 with rank 0. Of these pairs (0, 2),
    (1, 2), (3, 2), (2, 0), rank 2 is in four and rank 0 in two.
    """
    pairs = {tuple(event.facts.ranks) for event in events if len(event.facts.ranks) == 2}
    counts = Counter(rank for pair in pairs for rank in pair)
    best = counts.most_common(2)
    if not best or (len(best) > 1 and best[0][1] == best[1][1]):
        return []
    return [best[0][0]]
