"""Compare two states of memory: which groups of blocks (by name or line) are new, grew, shrank or disappeared."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from analyzers import run, store
from analyzers.memory.grouping import GroupPath, Usage, group_live_blocks
from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import open_snapshot
from analyzers.run import Artefact

if TYPE_CHECKING:
    import pandas as pd

_LINE_NUMBER = re.compile(r":\d+$")
DEPTH = {"category": 1}
"""{kind of group: number of leading parts of its path to compare}; of other kinds, the whole path is compared."""


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """A state of memory to compare: one device after the trace entry with index `entry` (-1: before the trace).

    If `entry` is None, the state with the most allocated memory is meant.
    """

    artefact: Artefact
    device: int = 0
    entry: int | None = None


class ChangeState(StrEnum):
    """The way in which the live bytes of a group of blocks changed between the two compared states of memory.

    A group is a category, a module or a line. `appeared`: only the second state has it. `went`: only the first one has
    it.
    """

    APPEARED = "appeared"
    GREW = "grew"
    SAME = "same"
    SHRANK = "shrank"
    WENT = "went"


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one group of memory blocks between the states `a` and `b`: a category, a module or a line (`what`).

    `state` says how its bytes changed. The other fields are the bytes and the numbers of its live blocks in both
    states.
    """

    what: str
    state: ChangeState
    a_bytes: int
    b_bytes: int
    a_blocks: int
    b_blocks: int

    @property
    def bytes(self) -> int:
        return self.b_bytes - self.a_bytes


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two states of memory, `a` and `b`, such as the peaks of two runs, steps or ranks.

    `a_bytes` and `b_bytes` are the live bytes of both states. `categories`, `modules` and `lines` are three ways to
    group these bytes; each list has the largest change first.
    """

    a_bytes: int
    b_bytes: int
    categories: list[GroupChange]
    modules: list[GroupChange]
    lines: list[GroupChange]

    @property
    def bytes(self) -> int:
        return self.b_bytes - self.a_bytes

    def table(self, by: str) -> "pd.DataFrame":
        """Return the list `by` (`categories`, `modules` or `lines`) as a table, one row per group.

        Columns: what, state, a_bytes, b_bytes, a_blocks, b_blocks, change.
        """
        import pandas as pd  # late: a report needs no tables, and pandas takes longer to load than a report to make

        rows = [msgspec.structs.asdict(change) | {"change": change.bytes} for change in getattr(self, by)]
        return pd.DataFrame(rows, columns=[*GroupChange.__struct_fields__, "change"])


def between(a: Instant, b: Instant, options: store.Options | None = None) -> Diff:
    """Return how the live memory at `b` differs from the live memory at `a`.

    The two states may be in different runs, steps or ranks, or at two trace entries of one snapshot.

    Raises:
        InputError: A snapshot cannot be read.
    """
    by_category, by_module, by_line = (
        changes(grouped(a, by, options), grouped(b, by, options), by) for by in ("category", "module", "line")
    )
    return Diff(
        a_bytes=sum(change.a_bytes for change in by_category),
        b_bytes=sum(change.b_bytes for change in by_category),
        categories=by_category,
        modules=by_module,
        lines=by_line,
    )


def grouped(instant: Instant, by: str, options: store.Options | None) -> dict[GroupPath, Usage]:
    """Return the bytes and blocks that are alive at an instant, by group: `by` is `category`, `module` or `line`.

    The path of a group is cut to its first `DEPTH[by]` parts, if `DEPTH` has a value for `by`.
    """
    groups: dict[GroupPath, Usage] = {}
    replay = Replay(open_snapshot(instant.artefact, options).device(instant.device))
    for path, usage in group_live_blocks(replay, by, instant.entry).items():
        cut = path[: DEPTH.get(by)]
        groups[cut] = groups.get(cut, Usage()) + usage
    return groups


def changes(a: Mapping[GroupPath, Usage], b: Mapping[GroupPath, Usage], by: str) -> list[GroupChange]:
    """Return the change of each group of blocks that exists in state `a` or `b`, the largest change first."""
    link = " " if by == "line" else "."
    rows = [_change_of(link.join(path), *usages) for path, usages in _aligned(a, b)]
    return sorted(rows, key=lambda change: (-abs(change.bytes), change.what))


def _aligned(
    a: Mapping[GroupPath, Usage], b: Mapping[GroupPath, Usage]
) -> Iterator[tuple[GroupPath, tuple[Usage, Usage]]]:
    """Yield (path, (usage in `a`, usage in `b`)) for each group of blocks; a missing group has an empty usage.

    Groups with the same path are a pair. A group that exists only in `a` and one that exists only in `b` are a pair if
    their paths differ only in line numbers, because the file was edited between the runs. Example: `model.py
    forward:41` of `a` is paired with `model.py forward:43` of `b`, and is shown with the line number of `b`.
    """
    for path in a.keys() & b.keys():
        yield path, (a[path], b[path])
    # Whatever is left exists on one side only, unless its lines merely moved.
    only_a, only_b = _without_line_numbers(a, b), _without_line_numbers(b, a)
    for key in only_a.keys() | only_b.keys():
        path, usage_a = only_a.get(key, (key, Usage()))
        newer_path, usage_b = only_b.get(key, (path, Usage()))
        yield newer_path, (usage_a, usage_b)


def _without_line_numbers(
    side: Mapping[GroupPath, Usage], other: Mapping[GroupPath, Usage]
) -> dict[GroupPath, tuple[GroupPath, Usage]]:
    """Return the groups that only `side` has and not `other`, keyed by their path without line numbers.

    The value is (the highest of the paths with line numbers, the total usage of all groups with this key).
    """
    groups: dict[GroupPath, tuple[GroupPath, Usage]] = {}
    for path in side.keys() - other.keys():
        key = tuple(_LINE_NUMBER.sub("", name) for name in path)
        known, usage = groups.get(key, (path, Usage()))
        groups[key] = max(path, known), usage + side[path]
    return groups


def _change_of(what: str, a: Usage, b: Usage) -> GroupChange:
    counts = {"a_bytes": a.bytes, "b_bytes": b.bytes, "a_blocks": a.blocks, "b_blocks": b.blocks}
    return GroupChange(what=what, state=_state_of(a, b), **counts)


def _state_of(a: Usage, b: Usage) -> ChangeState:
    """Return whether a group appeared, grew, stayed the same, shrank or disappeared from usage `a` to usage `b`."""
    if not a.blocks or not b.blocks:
        return ChangeState.WENT if a.blocks else ChangeState.APPEARED
    if a.bytes == b.bytes:
        return ChangeState.SAME
    return ChangeState.GREW if b.bytes > a.bytes else ChangeState.SHRANK


def fullest(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Instant:
    """Return the peak of the device with the highest peak among the snapshots of the last step.

    Raises:
        InputError: No snapshot can be read.
    """
    instants = [
        (device["peak_allocated_bytes"], Instant(artefact=artefact, device=device["device"]))
        for artefact in run.newest_step(artefacts)
        for device in open_snapshot(artefact, options).columns.meta["devices"]
    ]
    return max(instants, key=lambda instant: instant[0])[1]
