"""Find the rank that printed another count than all other ranks, in a line that all ranks print.

If the tensor of a rank has another size, earlier lines often show the reason: the rank prints `rank 3: 2080 trainable
parameters`, where all others print 1040. Only whole numbers without a unit are compared, because times, sizes and
losses differ between ranks of a healthy job.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analyzers.logs.loading import Logs
from analyzers.logs.reading.prefixes import step_in

_OWN_RANK = re.compile(r"\b[Rr]ank[ :=#]{0,2}\d{1,6}\b|^\W{0,2}\d{1,6}[\])]")
_NO_COUNT = re.compile(
    r"\d[.:]\d|\d ?(?:[mun\u00b5]?s|sec|seconds|min|[KMGT]i?B|bytes|%|/s)\b|0x|\bpid\b|\bport\b", re.IGNORECASE
)
"""Matches text with numbers that are not counts: decimals, times, sizes, addresses, process ids."""
# Of two different counts nothing shows which one is usual.
_RANKS_AT_LEAST = 3


class DifferingCount(NamedTuple):
    """A rank that printed `text`, while all other ranks printed the same line with another count, such as `others`."""

    rank: int
    text: str
    others: str


def find_differing_count(logs: Logs) -> DifferingCount | None:
    """Return the rank that printed another count than all other ranks, in a line that all ranks print.

    For example, one rank prints `100 batches` and all others print `125 batches`. The result is None if no rank printed
    such a count, if such lines point to different ranks, or if there are fewer than three ranks.
    """
    ranks = sorted(logs.ranks)
    if len(ranks) < _RANKS_AT_LEAST or not logs.ranks.keys() <= logs.said.keys():
        return None
    said = {rank: _by_line(logs.said[rank]) for rank in ranks}
    common = [line for line in said[ranks[0]] if all(line in lines for lines in said.values())]
    found = [count for line in common for count in _ranks_that_differ({rank: said[rank][line] for rank in ranks})]
    return found[-1] if len({count.rank for count in found}) == 1 else None


def _by_line(said: Sequence[str]) -> Mapping[tuple[str, int | None], str]:
    """Return {(line with `#` for each number, its step): its last text} for the lines of a rank that have numbers.

    The key identifies a line of the program: texts that differ only in digits have the same key, unless their steps
    differ. `said` has the last lines of the rank, the oldest first.
    """
    return {(re.sub(r"\d+", "#", _without_rank(text)), step_in(text)): text for text in said if re.search(r"\d", text)}


def _without_rank(text: str) -> str:
    """Return a line without the number of the rank in it."""
    return _OWN_RANK.sub("", text).strip()


def _ranks_that_differ(texts: Mapping[int, str]) -> Iterator[DifferingCount]:
    """Yield the one rank whose text differs from that of all others, if all others are equal; else nothing.

    `texts` maps each rank to its text of one line; texts with numbers that are not counts, such as times, are
    skipped.
    """
    counts = Counter(map(_without_rank, texts.values())).most_common()
    if len(counts) != 2 or counts[1][1] != 1:
        return
    rank = next(rank for rank, text in texts.items() if _without_rank(text) == counts[1][0])
    other = next(text for other, text in texts.items() if other != rank)
    if not _NO_COUNT.search(texts[rank]) and not _NO_COUNT.search(other):
        yield DifferingCount(rank, texts[rank], other)
