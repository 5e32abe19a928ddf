"""Make the tables about a hang for the user interfaces: a matrix of operations, locations, stacks and groups."""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analyzers import store
from analyzers.hangs.findings.wording import format_location
from analyzers.hangs.graph.divergence import comparable, find_locations
from analyzers.hangs.model import Frame, Job, Op, is_library
from analyzers.hangs.reading.dump_sets import open_set
from analyzers.hangs.reading.job import load_job
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.run import Run
from analyzers.words import rank_ranges, source_line


class CellState(StrEnum):
    """The state of an operation on a rank, shown in a cell of `matrix`.

    `SCHEDULED`: issued, but not started. `MISSING`: the rank has not issued the operation. `MISMATCH`: the rank issued
    a different operation. `NOT_HELD`: the rank's dump no longer contains the operation.
    """

    DONE = "done"
    STARTED = "started"
    SCHEDULED = "scheduled"
    MISSING = "missing"
    MISMATCH = "mismatch"
    NO_DUMP = "no dump"
    NOT_HELD = ""


class IssuedAt(NamedTuple):
    """An operation such as `all_reduce of 4x4 float32`, and the user's line that issued it; empty if unknown."""

    operation: str
    line: str


_NOT_ISSUED = IssuedAt("", "")


def matrix(run: Run, group: str | None = None, limit: int = 60, options: store.Options | None = None) -> pd.DataFrame:
    """Return the state of each collective of a process group: one row per rank, one column per sequence number.

    `group` is a name or description, by default the group in which most ranks wait; only the last `limit` numbers are
    shown. Cells are values of `CellState`.
    """
    job, _ = _open_job(run, options)
    number = _group_number(job, group)
    if number is None:
        return pd.DataFrame(index=pd.Index([], name="rank"))
    tables = {m: _by_seq(job, m, number, limit) for m in job.groups[number].ranks}
    seqs = sorted(set().union(*tables.values()))[-limit:]
    odd = mismatched(job, tables, seqs)
    rows = {m: [cell(job, m, number, seq, tables[m].get(seq), (m, seq) in odd) for seq in seqs] for m in tables}
    return pd.DataFrame.from_dict(rows, orient="index", columns=seqs).rename_axis(index="rank", columns="seq")


def operations(
    run: Run, group: str | None = None, around: int = 8, options: store.Options | None = None
) -> pd.DataFrame:
    """Return the collectives of each rank around the first sequence number at which members of a group differ.

    The table has a row for each sequence number and a column for each rank with a dump; each cell is an `IssuedAt`.
    `group` is a name or description, by default the group in which most ranks wait. `around` is how many numbers
    before and after the first difference are shown. Numbers before a rank's first record are no difference: its ring
    buffer has dropped them.
    """
    job, _ = _open_job(run, options)
    number = _group_number(job, group)
    if number is None:
        return pd.DataFrame(index=pd.Index([], name="seq"))
    tables = {m: _by_seq(job, m, number) for m in job.groups[number].ranks if m in job.ranks}
    every = sorted(set().union(*tables.values()))
    # A rank without any record takes part in nothing.
    begins = {member: min(table, default=-1) for member, table in tables.items()}
    lacks = {s: any(s not in table and s > begins[m] for m, table in tables.items()) for s in every}
    differing = (s for s in every if lacks[s] or differ(job, tables, s))
    first = next(differing, None)
    middle = every.index(first) if first is not None else len(every)
    shown = every[max(0, middle - around) : middle + around + 1]
    rows = [{m: _issued_at(job, table.get(seq)) for m, table in tables.items()} for seq in shown]
    return pd.DataFrame(rows, index=pd.Index(shown, name="seq"), columns=list(tables))


def folded(table: pd.DataFrame, axis: str = "index") -> pd.DataFrame:
    """Return a table in which ranks with equal cells share one row (or column), labelled such as `0-61, 63`.

    `table` is the result of `matrix`, which has a row for each rank. With `axis="columns"` it is the result of
    `operations`, which has a column for each rank.
    """
    by_rank = table if axis == "index" else table.T
    together: dict[tuple[str | IssuedAt, ...], list[int]] = {}
    for rank, row in zip(by_rank.index, by_rank.to_numpy().tolist(), strict=True):
        together.setdefault(tuple(row), []).append(int(rank))
    rows = pd.DataFrame(
        list(together), index=pd.Index(map(rank_ranges, together.values()), name="ranks"), columns=by_rank.columns
    )
    return rows if axis == "index" else rows.T


def locations(run: Run, options: store.Options | None = None) -> pd.DataFrame:
    """Return a table of the lines at which the ranks are, with a row for each line, the line of most ranks first.

    Columns: `ranks` (list), `name` (of the operation or function), `line`, and `text`, a phrase such as `62 ranks in
    all_gather at job/model.py:212`.
    """
    rows = [{**there._asdict(), "text": format_location(there)} for there in find_locations(*_open_job(run, options))]
    return pd.DataFrame(rows, columns=["ranks", "name", "line", "text"])


def stacks(run: Run, options: store.Options | None = None) -> pd.DataFrame:
    """Return the stacks of all ranks merged into a tree of frames, outermost frame first; each row follows its parent.

    For a rank that was ended by an exception, the stack of the exception is used, unless an earlier stack shows the
    hang itself. Columns: depth (0 for the outermost frame), name, place (`file:line`), ranks (list of the ranks in this
    frame), filename, line, own (whether the frame is the user's code).
    """
    job, side = _open_job(run, options)
    merged: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted({*job.ranks, *side.stack_files, *side.exits}):
        path = tuple(reversed(stack_of(rank, job, side)))
        for depth in range(1, len(path) + 1):
            merged.setdefault(path[:depth], []).append(rank)
    rows = [
        {
            "depth": len(path) - 1,
            "name": path[-1].name,
            "place": source_line(path[-1].filename, path[-1].line),
            "ranks": merged[path],
            "filename": path[-1].filename,
            "line": path[-1].line,
            "own": not is_library(path[-1]),
        }
        for path in sorted(merged)
    ]
    return pd.DataFrame(rows, columns=["depth", "name", "place", "ranks", "filename", "line", "own"])


def without_libraries(stacks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `stacks` that are the user's code, and those of other code in which a branch ends.

    The depth of a row becomes the number of frames around it that are left.
    """
    depths = stacks["depth"].tolist()
    is_end = (after <= depth for depth, after in zip(depths, chain(depths[1:], [0]), strict=False))
    kept = [bool(own) or end for own, end in zip(stacks["own"], is_end, strict=True)]
    left, around = [], [0]
    for depth, is_kept in zip(depths, kept, strict=True):
        # `around[d]` is how many frames are left around the frame at depth d of the current branch.
        del around[depth + 1 :]
        left.append(around[depth])
        around.append(around[depth] + is_kept)
    return stacks.assign(depth=left).loc[kept].reset_index(drop=True)


def stack_of(rank: int, job: Job, side: SideFiles) -> Sequence[Frame]:
    """Return the Python stack of a rank, innermost frame first: of its exception, main thread or current operation."""
    taken, ended = side.main_stack(rank), side.exits.get(rank)
    # A stack that was taken before the exception shows the hang, of which the exception may be a consequence.
    if ended and ended.traceback and (not taken or _RECORDERS in Path(taken[0].filename).parts):
        return [*ended.traceback, *callers(ended.traceback[-1], taken)]
    state = job.ranks.get(rank)
    return taken or (job.frames(state.current) if state and state.current else [])


_RECORDERS = "recorders"
"""The folder with the recorders' code; a stack that ends there was taken while an exception was recorded."""


def callers(function: Frame, stack: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames outside of the innermost call of `function` in a stack, which led to this call.

    The result is empty if the stack has no such call.
    """
    calls = (i for i, frame in enumerate(stack) if (frame.name, frame.filename) == (function.name, function.filename))
    return stack[next(calls, len(stack)) + 1 :]


def groups(run: Run, options: store.Options | None = None) -> pd.DataFrame:
    """Return the process groups of a job, the group in which most ranks wait first.

    Columns: `name`, `desc`, `members` (list of ranks), `waiting` (how many ranks wait in an operation of the group).
    """
    job, _ = _open_job(run, options)
    rows = [
        {"name": g.name, "desc": g.desc, "members": g.ranks, "waiting": waiting(job, number)}
        for number, g in enumerate(job.groups)
    ]
    # The columns are named so that a job without groups has them too.
    frame = pd.DataFrame(rows, columns=["name", "desc", "members", "waiting"])
    return frame.sort_values("waiting", ascending=False, kind="stable", ignore_index=True)


@lru_cache(maxsize=2)  # faces ask several questions of one run, and the same ones at every redraw
def _open_job(run: Run, options: store.Options | None) -> tuple[Job, SideFiles]:
    """Return the job made from the run's set of dumps that shows the hang, and the contents of the files beside it."""
    dumps, side = open_set(run)
    return load_job(dumps.rounds[0], side, options or store.Options()), side


def _group_number(job: Job, name: str | None) -> int | None:
    """Return the index in `Job.groups` of the group with that name or description; None if there is none.

    Without a name, it is the index of the group in which most ranks wait.
    """
    if not job.groups:
        return None
    if name is None:
        return max(range(len(job.groups)), key=lambda number: (waiting(job, number), len(job.groups[number].ranks)))
    return next((i for i, g in enumerate(job.groups) if name in (g.name, g.desc)), None)


def waiting(job: Job, number: int) -> int:
    return sum(state.current is not None and state.current.group == number for state in job.ranks.values())


def _by_seq(job: Job, rank: int, group: int, limit: int | None = None) -> dict[int, Op]:
    """Return {sequence number: collective} of a rank in a group, or only the last `limit` of them."""
    every = {op.seq: op for op in job.ranks[rank].collectives(group)} if rank in job.ranks else {}
    return every if limit is None or len(every) <= limit else {seq: every[seq] for seq in sorted(every)[-limit:]}


def differ(job: Job, tables: dict[int, dict[int, Op]], seq: int) -> bool:
    """Return whether ranks issued different operations under the sequence number `seq`.

    `tables` has the collectives of each rank by sequence number.
    """
    return len({comparable(job.signature(table[seq])) for table in tables.values() if seq in table}) > 1


def mismatched(job: Job, tables: dict[int, dict[int, Op]], seqs: Iterable[int]) -> set[tuple[int, int]]:
    """Return (rank, seq) of each operation that differs from the operation of most members of its group.

    Without a majority, all operations of that sequence number are returned. `tables` has the collectives of each member
    by sequence number; only the numbers `seqs` are compared.
    """
    odd = set()
    for seq in seqs:
        if not differ(job, tables, seq):
            continue
        issued = {m: comparable(job.signature(table[seq])) for m, table in tables.items() if seq in table}
        counts = Counter(issued.values()).most_common(2)
        # Without a majority no member is right, so all are marked.
        has_tie = counts[0][1] == counts[1][1]
        odd |= {(m, seq) for m, value in issued.items() if has_tie or value != counts[0][0]}
    return odd


def cell(job: Job, rank: int, group: int, seq: int, op: Op | None, is_odd: bool) -> str:
    """Return the `CellState` of collective number `seq` of a group on a rank, for one cell of `matrix`.

    `op` is the rank's operation, None if its dump does not have it. `is_odd`: most ranks issued a different operation.
    `group` is an index in `Job.groups`.
    """
    state = job.ranks.get(rank)
    if state is None:
        return CellState.NO_DUMP.value
    if op is None:
        return (CellState.MISSING if seq > state.enqueued(group) else CellState.NOT_HELD).value
    if is_odd:
        return CellState.MISMATCH.value
    return (CellState.DONE if op.done else CellState.STARTED if op.started else CellState.SCHEDULED).value


def _issued_at(job: Job, op: Op | None) -> IssuedAt:
    """Return the name and the source line of an operation as an `IssuedAt`; `_NOT_ISSUED` if `op` is None."""
    if op is None:
        return _NOT_ISSUED
    signature, line = job.signature(op), job.line(op)
    where = source_line(line.filename, line.line) if line else ""
    return IssuedAt(str(signature), where)
