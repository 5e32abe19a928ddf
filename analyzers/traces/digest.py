"""Compute the columns of a trace and all answers that need no other file, in a child process of `analyzers.store`.

With many ranks there is a child for each file, so that all processors are used. The answers are cached with the
columns, so that they are available at once when the file is opened again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column, UnsavedColumns, narrowed
from analyzers.store import code_version
from analyzers.traces.collectives import RankCollectives
from analyzers.traces.columns import NONE, Work, nest, phases, work_of_accounts
from analyzers.traces.flops import Formulas
from analyzers.traces.messages import collective_columns, message_columns
from analyzers.traces.reading.trace import Trace, find_lanes

VERSION = code_version(Path(__file__).parent)
"""A checksum of the code of the trace analyzer, which is a part of the cache's key."""
LATE_IMPORTS = (
    "analyzers.traces.accounts",
    "analyzers.traces.allocations",
    "analyzers.traces.reading.reader",
    "numpy.ma",
)
"""The modules that are imported only when a trace is read, not when its answers are found in the cache."""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns of the trace `paths[0]` (those in the file, and those derived from them), and its metadata.

    `meta["accounts"]` holds all answers as a list, with one item per device or host (`RankTrace`).

    Raises:
        InputError: The file is no profiler trace.
    """
    # Whoever finds the answers in the cache imports this module for VERSION alone.
    from analyzers.traces.accounts import answer_account, problems
    from analyzers.traces.allocations import memory_of_accounts
    from analyzers.traces.reading import reader

    columns = UnsavedColumns(*reader.read(paths))
    trace = _add_derived_columns(columns)
    works, formulas = work_of_accounts(trace), Formulas(trace)
    columns |= _work_columns(trace, works)
    collectives = [RankCollectives(work) for work in works]
    accounts = [
        msgspec.structs.replace(answer_account(of_work, formulas), device_memory=memory)
        for of_work, memory in zip(collectives, memory_of_accounts(works), strict=True)
    ]
    answers = msgspec.to_builtins(accounts)
    # The tables of collectives bring texts of their own, which join those of the events.
    texts = {name: number for number, name in enumerate(columns.meta["names"])}
    columns |= collective_columns(collectives, texts) | message_columns(collectives)
    account_problems = msgspec.to_builtins([problems(work) for work in works])
    added = {"accounts": answers, "account_problems": account_problems, "names": list(texts)}
    return dict(columns), columns.meta | added


def _add_derived_columns(columns: UnsavedColumns) -> Trace:
    """Add the columns `lane`, `depth`, `parent` and `phase` to those of a trace, and return the trace.

    `lane` has indices into `meta["lanes"]`, which is added, too. `parent` has the row of the event directly around each
    event, `depth` the number of events around it, and `phase` an index into `phases.PHASE_NAMES`.
    """
    trace = Trace(columns)
    lane, columns.meta["lanes"] = find_lanes(trace)
    depth, parent = nest(lane, columns["start"], columns["end"])
    columns |= {"lane": narrowed(lane), "depth": narrowed(depth), "parent": narrowed(parent)}
    columns["phase"] = phases(trace, parent, lane)
    return trace


def _work_columns(trace: Trace, works: Sequence[Work]) -> dict[str, Column]:
    """Return the columns `account`, `kind` and `launch` for all events of a trace; events that are no work have -1.

    `account` is the index in `works` of the device or host that did the work. `kind` is COMPUTE, COMMUNICATION or
    MEMORY. `launch` is the trace row of the call that launched the event.
    """
    columns = {name: np.full(len(trace.columns["start"]), NONE) for name in ("account", "kind", "launch")}
    for number, work in enumerate(works):
        for name, values in (("account", number), ("kind", work.kind), ("launch", work.launch)):
            columns[name][work.rows] = values
    return {name: narrowed(column) for name, column in columns.items()}
