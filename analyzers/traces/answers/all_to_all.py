"""Compute how many bytes a rank sends to each other rank in all-to-alls, from the recorded split sizes."""

import re
from contextlib import suppress

import msgspec
import numpy as np

from analyzers.columns import Integers
from analyzers.traces.answers.collectives import RankCollectives, element_bytes
from analyzers.traces.model import AllToAll
from analyzers.traces.reading.distinct import combined_codes, rows_by_value

_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_SPLIT_AT_MOST = 1 << 31
# Stands for splits that were recorded but cannot be used: they fit no group.
_NO_SPLITS: list[object] = [None]


def all_to_alls(collectives: RankCollectives) -> list[AllToAll]:
    """Return, for each process group with all-to-alls, how many bytes this rank sends to each member in total.

    The group with most bytes sent comes first. Calls are left out if their recorded split sizes are truncated or do not
    fit the group.
    """
    names = [_ALL_TO_ALL.search(name) is not None for name in collectives.name.texts]
    is_all_to_all = np.array(names, bool)[collectives.name.code]
    elements, splits = collectives.recorded("elements"), collectives.recorded("splits")
    rows = np.flatnonzero(is_all_to_all & (elements >= 0) & (splits >= 0))
    kind = combined_codes(collectives.group.code, collectives.members, collectives.dtype.code, elements, splits)
    totals: dict[str, tuple[int, Integers]] = {}
    for _, same in rows_by_value(kind[rows]):
        row = int(rows[same[0]])
        size = int(elements[row]) * element_bytes(collectives.dtype.texts[collectives.dtype.code[row]])
        sent = split_bytes(size, collectives.work.trace.names[splits[row]], int(collectives.members[row]))
        group = collectives.group.texts[collectives.group.code[row]]
        count, before = totals.get(group, (0, np.zeros_like(sent)))
        if len(sent) and len(sent) == len(before):
            totals[group] = count + len(same), before + len(same) * sent
    rows_of_groups = [
        AllToAll(
            group=group,
            group_desc=collectives.descriptions.get(group, ""),
            count=count,
            ranks=ranks_of(collectives, group, len(sent)),
            sent_bytes=sent.tolist(),
        )
        for group, (count, sent) in totals.items()
    ]
    return sorted(rows_of_groups, key=lambda row: (-sum(row.sent_bytes), row.group))


def split_bytes(size: int, text: str, members: int) -> Integers:
    """Return `size` bytes divided among `members` in proportion to the split sizes in a text (evenly if it is empty).

    The result is an empty array if the number of split sizes is not `members`. Example: 600 bytes by "[1, 2, 3]" among
    3 members give 100, 200 and 300 bytes.
    """
    splits = _decoded_splits(text) or [1] * members
    numbers = [split for split in splits if isinstance(split, int) and 0 <= split < _SPLIT_AT_MOST]
    if len(numbers) != len(splits) or len(numbers) != members or not sum(numbers):
        return np.zeros(0, np.int64)
    return np.array([size * split // sum(numbers) for split in numbers], np.int64)


def _decoded_splits(text: str) -> list[object]:
    """Return the split sizes in a text; an empty list if the text is empty, which means that the data is split evenly.

    The result is `_NO_SPLITS` if the text cannot be decoded; recorders truncate long lists.
    """
    # Recorders write the list as a text, and cut a long one after 30 entries: what is left is no JSON.
    with suppress(msgspec.DecodeError):
        splits = msgspec.json.decode(text)
        splits = msgspec.json.decode(splits) if isinstance(splits, str) else splits
        return splits if isinstance(splits, list) else _NO_SPLITS
    return _NO_SPLITS if text else []


def ranks_of(collectives: RankCollectives, group: str, members: int) -> list[int]:
    """Return the ranks of the process group named `group`, which has `members` ranks; empty if they are not known."""
    header = collectives.work.trace.header
    listed = {row["name"]: row["ranks"] for row in header.get("groups", [])}
    ranks = listed.get(group, [])
    if len(ranks) == members:
        return list(ranks)
    # As many members as the job has ranks: the group can only be all of them.
    return list(range(members)) if members >= (header.get("world_size") or 1) else []
