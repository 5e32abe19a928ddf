"""Find the operations of process groups that were destroyed and created again under the same name.

A process may call `destroy_process_group()` and `init_process_group()` again. PyTorch may then give a new group the
name of an old one, and its sequence numbers begin again. In the ring buffer both look like one group, and the last
number of the old one like that of a rank which is far ahead:

    rank 0   old #1 #2 #3 #4 #5   new #1 #2 #3 (pending)
    rank 2   old #1 #2 #3 #4 #5   new #1 #2 (all done)          rank 2 seems to have completed #5

Within one group the numbers of collectives never fall, so a number that is lower than the one before begins a new
group. A rank that has issued nothing in its new group shows no such fall: there, all operations are old that are older
than the new group of another rank.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column

_NEVER = -1


class Renewal(NamedTuple):
    """A process group of one rank that was created again.

    `row` is the first row of the newest group in the table of operations. `positions` are the sequence numbers of its
    collectives: the first, the last that was issued, and the last that completed (-1: none).
    """

    row: int
    positions: tuple[int, int, int]


Place = tuple[int, int]
"""The index of a dump, and the number of a process group in it."""


def find_renewals(columns: Mapping[str, Column], enqueued: Mapping[Place, int]) -> dict[Place, Renewal]:
    """Return the renewal of each process group that a rank created again; mostly empty.

    `columns` is a table of operations in the order of issue, of which each dump may have only the last rows. `enqueued`
    has the highest sequence number of each group in the whole dump.
    """
    collectives = np.flatnonzero(columns["p2p"] == 0)
    dump, group, seq = (columns[name][collectives] for name in ("dump", "group", "seq"))
    order = np.lexsort((group, dump))  # stable: within a group the rows stay in the order of issue
    rows, dump, group, seq = collectives[order], dump[order], group[order], seq[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = (dump[1:] != dump[:-1]) | (group[1:] != group[:-1])
    falls = np.zeros(len(rows), bool)
    falls[1:] = ~begins[1:] & (seq[1:] < seq[:-1])
    starts = np.flatnonzero(begins)
    stops = np.append(starts, len(rows))[1:]
    found: dict[Place, Renewal] = {}
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        key = int(dump[start]), int(group[start])
        fall = np.flatnonzero(falls[start:stop])
        if not len(fall) and seq[stop - 1] >= enqueued.get(key, _NEVER):
            continue
        newest = slice(start + int(fall[-1]) if len(fall) else start, stop)
        done = columns["done"][rows[newest]] != 0
        positions = int(seq[newest][0]), int(seq[newest].max()), int(seq[newest][done].max(initial=_NEVER))
        found[key] = Renewal(int(rows[newest.start]), positions)
    return found
