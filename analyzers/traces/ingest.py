"""The reader of traces: the columns of a file, and beside them every answer that needs no other file.

Answering in the child that reads keeps all processors busy with many ranks, and spares whoever opens the file again
the work.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column, UnsavedColumns
from analyzers.traces.answers.between_collectives import collective_columns
from analyzers.traces.answers.collectives import RankCollectives
from analyzers.traces.answers.flops import Formulas
from analyzers.traces.columns.nesting import NONE, nest
from analyzers.traces.columns.phases import phases
from analyzers.traces.columns.work import Work, work_of_accounts
from analyzers.traces.model import Trace, find_lanes
from analyzers.traces.reading.event_table import downcast

VERSION = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))))
"""A change of any module of this room or of a folder in it makes the cached answers stale."""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """The columns of `read.read`, those derived from them, and in `meta` the answers.

    Raises:
        InputError: It is no trace.
    """
    # Whoever finds the answers in the cache imports this module for VERSION alone.
    from analyzers.traces.answers.accounts import describe
    from analyzers.traces.answers.allocations import of_accounts
    from analyzers.traces.answers.validity import problems
    from analyzers.traces.reading import reader as parsing

    columns = UnsavedColumns(*parsing.read(paths))
    trace = derived(columns)
    found, formulas = work_of_accounts(trace), Formulas(trace)
    columns |= work_columns(trace, found)
    met = [RankCollectives(work) for work in found]
    accounts = [
        msgspec.structs.replace(describe(one, formulas), device_memory=memory)
        for one, memory in zip(met, of_accounts(found), strict=True)
    ]
    answers = msgspec.to_builtins(accounts)
    texts = {name: number for number, name in enumerate(columns.meta["names"])}
    columns |= collective_columns(met, texts)
    account_problems = msgspec.to_builtins([problems(work) for work in found])
    return dict(columns), columns.meta | {
        "accounts": answers,
        "account_problems": account_problems,
        "names": list(texts),
    }


def derived(columns: UnsavedColumns) -> Trace:
    """The trace, with `lane` (a number in `meta["lanes"]`), `depth`, `parent` and `phase` of each event added to it."""
    trace = Trace(columns)
    lane, columns.meta["lanes"] = find_lanes(trace)
    depth, parent = nest(lane, columns["start"], columns["end"])
    columns |= {"lane": downcast(lane), "depth": downcast(depth), "parent": downcast(parent)}
    columns["phase"] = phases(trace, parent, lane)
    return trace


def work_columns(trace: Trace, found: Sequence[Work]) -> dict[str, Column]:
    """`account`, `kind` and `launch` (a row) of the events that count as work, -1 for the others."""
    made = {name: np.full(len(trace.columns["start"]), NONE) for name in ("account", "kind", "launch")}
    for number, work in enumerate(found):
        for name, values in (("account", number), ("kind", work.kind), ("launch", work.launch)):
            made[name][work.rows] = values
    return {name: downcast(column) for name, column in made.items()}
