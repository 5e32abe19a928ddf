"""What was looked up of a hang, as tables."""

import pandas as pd

from analyzers.hangs import views
from analyzers.words import rank_ranges
from workbench.present.table import Table, table

ROWS = 40


def operations(frame: pd.DataFrame) -> Table:
    """What the ranks issued side by side (`hangs.views.operations`); those that issued the same share a column.

    The lines come last, as what parts the ranks is to be seen first; `≠` marks the rows in which they part.
    """
    together = views.folded(frame, "columns") if len(frame) else frame
    heads = " | ".join(["seq>", "", *(f"rank {ranks}" for ranks in together.columns), "line"])
    rows = (side_by_side(seq, row) for seq, row in zip(together.index, together.to_numpy().tolist(), strict=True))
    return table("Operations around the point where ranks part", heads, rows, ROWS)


def side_by_side(seq: int, cells: list[str]) -> list[object]:
    """A row, from cells such as `all_reduce 1024 Float (trainer/step.py:43)`."""
    told = [cell.removesuffix(")").partition(" (") for cell in cells]
    lines = dict.fromkeys(line for _, _, line in told if line)
    return [seq, "≠" if len(set(cells)) > 1 else "", *(operation for operation, _, _ in told), "  ".join(lines)]


def standing(places: pd.DataFrame) -> Table:
    """Where the ranks stand (`hangs.views.places`)."""
    rows = ((rank_ranges(ranks), said) for ranks, said in zip(places["ranks"], places["said"], strict=True))
    return table("Where the ranks stand", "ranks | where", rows, ROWS)
