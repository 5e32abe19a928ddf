"""Find the rank that printed another count than all other ranks did, in a line that all ranks print.

A rank whose tensor has another size often said so before: `rank 3: 2080 trainable parameters`, where all others printed
1040. Only whole numbers without a unit count, as times, sizes and losses differ between ranks of a healthy job.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analyzers.logs.loading import Logs
from analyzers.logs.reading.prefixes import step_in

OWN_RANK = re.compile(r"\b[Rr]ank[ :=#]{0,2}\d{1,6}\b|^\W{0,2}\d{1,6}[\])]")
NO_COUNT = re.compile(
    r"\d[.:]\d|\d ?(?:[mun\u00b5]?s|sec|seconds|min|[KMGT]i?B|bytes|%|/s)\b|0x|\bpid\b|\bport\b", re.IGNORECASE
)
"""Matches text with numbers that are no counts: decimals, times, sizes, addresses, processes."""
RANKS_AT_LEAST = 3


class DifferingCount(NamedTuple):
    """A rank that printed the line `text` where all other ranks printed lines such as `others`."""

    rank: int
    text: str
    others: str


def find_differing_count(logs: Logs) -> DifferingCount | None:
    """Return the rank that printed another count than all others in the same line of the program.

    The result is None if no rank did, if the lines accuse different ranks, or if there are fewer than three ranks.
    """
    ranks = sorted(logs.ranks)
    if len(ranks) < RANKS_AT_LEAST or not logs.ranks.keys() <= logs.said.keys():
        return None
    said = {rank: by_line(logs.said[rank]) for rank in ranks}
    common = [line for line in said[ranks[0]] if all(line in lines for lines in said.values())]
    found = [count for line in common for count in ranks_that_differ({rank: said[rank][line] for rank in ranks})]
    return found[-1] if len({count.rank for count in found}) == 1 else None


def by_line(said: Sequence[str]) -> Mapping[tuple[str, int | None], str]:
    """Return the last text of each line of the program that has numbers.

    Lines are the same if they differ only in digits; lines with different steps are different ones.
    """
    return {(re.sub(r"\d+", "#", without_rank(text)), step_in(text)): text for text in said if re.search(r"\d", text)}


def without_rank(text: str) -> str:
    """Return a line without the rank that it names."""
    return OWN_RANK.sub("", text).strip()


def ranks_that_differ(texts: Mapping[int, str]) -> Iterator[DifferingCount]:
    """Yield the rank whose text differs from the text of all others, if these are equal and it differs in a count."""
    counts = Counter(map(without_rank, texts.values())).most_common()
    if len(counts) != 2 or counts[1][1] != 1:
        return
    rank = next(rank for rank, text in texts.items() if without_rank(text) == counts[1][0])
    other = next(text for other, text in texts.items() if other != rank)
    if not NO_COUNT.search(texts[rank]) and not NO_COUNT.search(other):
        yield DifferingCount(rank, texts[rank], other)
