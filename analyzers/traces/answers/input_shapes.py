"""Operators told apart by the sizes of their inputs, as one that is slow may be so with one of them only."""

import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.flops import Formulas, decoded
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.reading.distinct import factorize
from analyzers.traces.structs import OperatorShape

SHAPES_AT_MOST = 50
TEXT_AT_MOST = 200


def by_shape(due: Attribution, formulas: Formulas) -> list[OperatorShape]:
    """Operators by name and input sizes, those that take most time first; nothing where no shapes were recorded."""
    c, names = due.trace.columns, due.trace.names
    rows, texts = c["shape_row"].astype(np.int64), c["shape_text"].astype(np.int64)
    spent = time_of(due)[rows]
    worth = spent > 0
    rows, texts, spent = rows[worth], texts[worth], spent[worth]
    if not len(rows):
        return []
    keys, which = factorize(texts * len(names) + c["name"][rows])
    count = np.bincount(which)
    total, done, moved = (np.zeros(len(keys), np.int64) for _ in range(3))
    np.add.at(total, which, spent)
    counted, operations, sizes = formulas.rows
    flops = np.zeros(len(c["start"]), np.int64)
    flops[counted] = operations
    np.add.at(done, which, flops[rows])
    flops[counted] = sizes
    np.add.at(moved, which, flops[rows])
    found = []
    for i in np.argsort(-total, kind="stable")[:SHAPES_AT_MOST].tolist():
        text, name = divmod(int(keys[i]), len(names))
        found.append(
            OperatorShape(
                name=names[name],
                shapes=written(c.meta["shapes"][text]),
                count=int(count[i]),
                total_ns=int(total[i]),
                flops=int(done[i]),
                flops_per_s=round(int(done[i]) / int(total[i]) * 1e9),
                bound=formulas.bound(int(done[i]), int(moved[i])),
            )
        )
    return found


def time_of(due: Attribution) -> Column:
    """For each event the time of the kernels that it launched and no operator inside it did; on a host its own."""
    work, c = due.work, due.trace.columns
    spent = np.zeros(len(c["start"]), np.int64)
    if work.device is None:
        spent[work.rows] = work.own
        return spent
    around = due.around("operator")[work.launch]
    known = work.linked & (around != NONE)
    np.add.at(spent, around[known], work.own[known])
    return spent


def written(shapes: str) -> str:
    """Sizes and types of the inputs that have any: `[4096, 64] c10::BFloat16, [64] float`."""
    dims, types, _ = f"{shapes}\0\0".split("\0")[:3]
    kinds = [str(kind) for kind in decoded(types)]
    sizes = decoded(dims)
    told = [f"{size} {kind}" for size, kind in zip(sizes, kinds + [""] * len(sizes), strict=False) if size]
    return ", ".join(text.strip() for text in told)[:TEXT_AT_MOST]
