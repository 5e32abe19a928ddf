"""All-to-alls: how much a rank sends to each other one, by the split sizes that were recorded."""

import re
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.collectives import ELEMENT_BYTES, RankCollectives
from analyzers.traces.reading.distinct import combined_codes, rows_by_value
from analyzers.traces.structs import AllToAll

ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)


def exchanges(met: RankCollectives) -> list[AllToAll]:
    """By group, the one that sends most first; calls whose splits are cut short or make no sense do not count."""
    wanted = np.array([ALL_TO_ALL.search(name) is not None for name in met.name.texts], bool)[met.name.code]
    elements, splits = met.told("elements"), met.told("splits")
    chosen = np.flatnonzero(wanted & (elements >= 0) & (splits >= 0))
    found: dict[str, tuple[int, Column]] = {}
    for _, places in rows_by_value(
        combined_codes(met.group.code, met.members, met.dtype.code, elements, splits)[chosen]
    ):
        one = int(chosen[places[0]])
        size = int(elements[one]) * ELEMENT_BYTES.get(met.dtype.texts[met.dtype.code[one]].lower(), 0)
        sent = divided(size, met.work.trace.names[splits[one]], int(met.members[one]))
        group = met.group.texts[met.group.code[one]]
        count, before = found.get(group, (0, np.zeros_like(sent)))
        if len(sent) and len(sent) == len(before):
            found[group] = count + len(places), before + len(places) * sent
    return sorted(
        (
            AllToAll(
                group=group,
                group_desc=met.described.get(group, ""),
                count=count,
                ranks=ranks_of(met, group, len(sent)),
                sent_bytes=sent.tolist(),
            )
            for group, (count, sent) in found.items()
        ),
        key=lambda one: (-sum(one.sent_bytes), one.group),
    )


def divided(size: int, text: str, members: int) -> Column:
    """So many bytes by the split sizes of a text, evenly where it has none; empty where it does not fit."""
    splits = decoded(text) or [1] * members
    known = len(splits) == members and all(isinstance(part, int) and 0 <= part < 1 << 31 for part in splits)
    if not known or not sum(splits):
        return np.zeros(0, np.int64)
    return np.array([size * part // sum(splits) for part in splits], np.int64)


def decoded(text: str) -> list[Any] | None:
    """A list, which recorders write as a text; of a long one they cut the end, which leaves nothing to go by."""
    with suppress(msgspec.DecodeError):
        found = msgspec.json.decode(text)
        found = msgspec.json.decode(found) if isinstance(found, str) else found
        return found if isinstance(found, list) else ["odd"]
    return ["cut"] if text else None


def ranks_of(met: RankCollectives, group: str, members: int) -> list[int]:
    """The ranks of a group; empty where neither the file's list of groups nor its size tells them."""
    header = met.work.trace.header
    listed = {one["name"]: one["ranks"] for one in header.get("groups", [])}
    ranks = listed.get(group, [])
    if len(ranks) == members:
        return list(ranks)
    return list(range(members)) if members >= (header.get("world_size") or 1) else []
