"""Tables of a hang report: the culprit ranks, the ranks that wait for them, and what each rank was doing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analyzers.hangs import views
from analyzers.hangs.model import Culprit, Frame, Group, HangData, is_library, user_frame
from analyzers.words import quantity, rank_names, rank_pattern, rank_ranges, ranks_label, source_line
from workbench.present.table import Table, table

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 40
_LONGEST_NAMES = 40
"""The most characters for the names of ranks in a title."""
_SINGLE_WAITS = 32
"""The most waiting ranks that have a row each."""


def hang_tables(data: HangData) -> list[Table]:
    groups = ((g.name, g.description, rank_pattern(g.ranks)) for g in largest_first(data.groups))
    return [
        culprits(data.culprits),
        waits(data),
        table("Process groups", "name | description | ranks", groups, 6),
    ]


def largest_first(groups: Sequence[Group]) -> list[Group]:
    """Return process groups by size; of equal ones that of the smaller number, as PyTorch names them, comes first."""
    return sorted(groups, key=lambda group: (-len(group.ranks), len(group.name), group.name))


def culprits(found: Sequence[Culprit]) -> Table:
    rows = (
        (
            rank_ranges(c.ranks),
            str(c.kind).replace("_", " "),
            c.group_desc or c.group or "",
            "" if c.seq is None else c.seq,
            c.operation or "",
            _user_line(c.frames),
            rank_ranges(c.victims),
        )
        for c in found
    )
    return table("Culprits", "ranks | class | group | seq> | operation | source line | victims", rows)


def waits(data: HangData) -> Table:
    """Return a table with a row for each waiting rank and the ranks that it waits for.

    If there are many, those that wait in the same operation of groups with the same description share a row, such as
    `0-511` that wait for `512-1023`: each waits for those of its own group.
    """
    # Groups are numbered by PyTorch; the description (`mesh_tp`) is what the user gave them.
    names = {group.name: group.label for group in data.groups}
    together: dict[tuple[object, ...], tuple[list[int], set[int]]] = {}
    many = len(data.waits) > _SINGLE_WAITS
    for w in data.waits:
        name = names.get(w.group, w.group)
        key = (name, w.seq, w.operation, bool(w.waits_for)) if many else (name, w.seq, w.rank)
        ranks, awaited = together.setdefault(key, ([], set()))
        ranks.append(w.rank)
        awaited.update(w.waits_for)
    # Those that wait for the fewest come first: they are nearest to the cause.
    rows = sorted(together.items(), key=lambda item: len(item[1][1]) if many else 0)
    cells = (
        (rank_ranges(ranks), rank_ranges(sorted(awaited)) or "no rank: all have arrived", name, seq)
        for (name, seq, *_), (ranks, awaited) in rows
    )
    return table("Who waits for whom", f"{'ranks' if many else 'rank>'} | waits for | group | seq>", cells)


def culprit_stacks(found: Sequence[Culprit]) -> list[Table]:
    """Return, for each set of culprit ranks with a recorded stack, a table of its frames outside libraries.

    The innermost frame comes first. A stack that consists of library frames alone is shown whole.
    """
    tables = []
    for culprit in found:
        frames = [frame for frame in culprit.frames if not is_library(frame)] or culprit.frames
        rows = [(frame.name, source_line(frame.filename, frame.line)) for frame in frames]
        title = f"Stack of {rank_names(culprit.ranks)}, innermost frame first"
        tables += [table(title, "function | source line", rows, _ROWS)] if rows else []
    return tables


def victim_stacks(data: HangData, stacks: "pd.DataFrame") -> list[Table]:
    """Return, for each set of culprit ranks, a table of the stack that most ranks share that wait for it directly.

    `stacks` is the result of `hangs.views.stacks`. Frames in libraries are left out, as in `culprit_stacks`, so that
    both stacks show where the ranks went different ways.
    """
    tables = []
    for culprit in data.culprits:
        direct = {wait.rank for wait in data.waits if set(culprit.ranks) & set(wait.waits_for)} - set(culprit.ranks)
        frames, ranks = _shared_stack(stacks, direct or set(culprit.victims))
        rows = [(frame.name, frame.place) for frame in [f for f in frames if f.own] or frames]
        title = f"Stack of {_few_or_number(ranks)}, waiting, innermost frame first"
        tables += [table(title, "function | source line", rows, _ROWS)] if rows else []
    return tables


def _few_or_number(ranks: Sequence[int]) -> str:
    names = rank_names(ranks)
    return names if len(names) <= _LONGEST_NAMES else f"{quantity(len(ranks), 'rank')}, such as {rank_names(ranks[:1])}"


def _shared_stack(stacks: "pd.DataFrame", ranks: set[int]) -> tuple[list[Any], list[int]]:
    """Return (frames, ranks that have them) of the stack that most of `ranks` have, innermost frame first.

    Each frame is a row of `stacks`. Of stacks with equally many ranks, the first one counts.
    """
    rows: list[Any] = [*stacks.itertuples()]
    ends = [i for i, row in enumerate(rows) if i + 1 == len(rows) or rows[i + 1].depth <= row.depth]
    if not ends:
        return [], []
    end = max(ends, key=lambda i: len(ranks & set(rows[i].ranks)))
    frames = [rows[end]]
    for row in reversed(rows[:end]):
        if row.depth < frames[-1].depth:
            frames.append(row)
    shared = sorted(ranks & set(rows[end].ranks))
    return (frames, shared) if shared else ([], [])


def _user_line(frames: Sequence[Frame]) -> str:
    frame = user_frame(list(frames))
    return f"{source_line(frame.filename, frame.line)} {frame.name}" if frame else "not recorded"


def operations(frame: "pd.DataFrame") -> Table:
    """Return a table of the collectives that each rank issued, with a row for each sequence number.

    `frame` is the result of `hangs.views.operations`. Ranks that issued the same operations share a column, and `≠`
    marks the rows in which ranks differ. The last column has the source lines.
    """
    together = views.folded(frame, "columns") if len(frame) else frame
    heads = " | ".join(["seq>", "", *map(ranks_label, together.columns), "source lines"])
    rows = (side_by_side(seq, row) for seq, row in zip(together.index, together.to_numpy().tolist(), strict=True))
    return table("Operations around the first difference between ranks", heads, rows, _ROWS)


def side_by_side(seq: int, cells: Sequence[views.IssuedAt]) -> list[object]:
    """Return the cells of one row of the table of collectives: the operation of each rank, and the source lines."""
    lines = dict.fromkeys(cell.line for cell in cells if cell.line)
    # A rank whose source line is not recorded does not differ by that from the others.
    differs = len({cell.operation for cell in cells}) > 1 or len(lines) > 1
    return [seq, "≠" if differs else "", *(cell.operation for cell in cells), "  ".join(lines)]


def current_positions(places: "pd.DataFrame") -> Table:
    rows = ((rank_ranges(ranks), text) for ranks, text in zip(places["ranks"], places["text"], strict=True))
    return table("What each rank is doing", "ranks | activity", rows, _ROWS)
