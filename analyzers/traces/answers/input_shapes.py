"""List operators by name and by the sizes of their inputs, to find input sizes that make an operator slow."""

import numpy as np

from analyzers.columns import Integers
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.flops import Formulas, decoded_list
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.model import OperatorShape
from analyzers.traces.reading.distinct import factorize, sums_by_code

_SHAPES_AT_MOST = 50
_TEXT_AT_MOST = 200


def operator_shapes(attribution: Attribution, formulas: Formulas) -> list[OperatorShape]:
    """Return the time of operators by name and input sizes, the most time first; empty if no shapes were recorded."""
    c, names = attribution.trace.columns, attribution.trace.names
    rows, texts = c["shape_row"].astype(np.int64), c["shape_text"].astype(np.int64)
    spent = _direct_time(attribution)[rows]
    rows, texts, spent = rows[spent > 0], texts[spent > 0], spent[spent > 0]
    if not len(rows):
        return []
    # Shape and name in one number, so that pairs are grouped as single numbers are.
    keys, code = factorize(texts * len(names) + c["name"][rows])
    counted_rows, operations, moved = formulas.rows
    count, total = np.bincount(code), sums_by_code(code, spent, len(keys))
    flops, size = (
        sums_by_code(code, of_rows(len(c["start"]), counted_rows, values)[rows], len(keys))
        for values in (operations, moved)
    )
    shapes = []
    for i in np.argsort(-total, kind="stable")[:_SHAPES_AT_MOST].tolist():
        text, name = divmod(int(keys[i]), len(names))
        shapes.append(
            OperatorShape(
                name=names[name],
                shapes=_readable_shapes(c.meta["shapes"][text]),
                count=int(count[i]),
                total_ns=int(total[i]),
                flops=int(flops[i]),
                flops_per_s=round(int(flops[i]) / int(total[i]) * 1e9),
                bound=formulas.bound(int(flops[i]), int(size[i])),
            )
        )
    return shapes


def of_rows(size: int, rows: Integers, values: Integers) -> Integers:
    """Return an int64 column of length `size`: `values` at the indices `rows`, and 0 elsewhere."""
    column = np.zeros(size, np.int64)
    column[rows] = values
    return column


def _direct_time(attribution: Attribution) -> Integers:
    """Return, for each event of the trace, the time (ns) of the kernels that it launched directly.

    Kernels launched by operators inside the event are not counted. If no device worked, the result is each event's time
    without the events inside it.
    """
    work, c = attribution.work, attribution.trace.columns
    spent = np.zeros(len(c["start"]), np.int64)
    if work.device is None:
        spent[work.rows] = work.own
        return spent
    around = attribution.around("operator")[work.launch]
    known = work.linked & (around != NONE)
    np.add.at(spent, around[known], work.own[known])
    return spent


def _readable_shapes(shapes: str) -> str:
    """Return sizes and types of an operator's inputs, such as `[4096, 64] c10::BFloat16, [64] float`.

    Inputs without a size are left out.
    """
    dims, types, _ = f"{shapes}\0\0".split("\0")[:3]
    kinds = [str(kind) for kind in decoded_list(types)]
    sizes = decoded_list(dims)
    texts = [f"{size} {kind}" for size, kind in zip(sizes, kinds + [""] * len(sizes), strict=False) if size]
    return ", ".join(text.strip() for text in texts)[:_TEXT_AT_MOST]
