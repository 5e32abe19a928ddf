"""What faces draw of a hang: small tables."""

from collections.abc import Iterable
from functools import lru_cache

import pandas as pd

from analyzers import run, store
from analyzers.hangs.graph.locations import crowds
from analyzers.hangs.graph.signatures import comparable
from analyzers.hangs.model import Frame, Job, Op, is_library
from analyzers.hangs.reading.dump_sets import open_set
from analyzers.hangs.reading.job import load_job
from analyzers.hangs.reading.side_files import Side
from analyzers.words import rank_ranges, source_line

STATES = ("done", "started", "scheduled", "missing", "mismatch", "no dump")


def matrix(
    found: run.Run, group: str | None = None, limit: int = 60, options: store.Options | None = None
) -> pd.DataFrame:
    """One row a rank, one column a sequence number of `group` (by default the one with most waiting), the last `limit`.

    Cells are one of `STATES`; empty where the ring no longer holds the operation.
    """
    job, _ = open_job(found, options)
    number = group_number(job, group)
    if number is None:
        return pd.DataFrame(index=pd.Index([], name="rank"))
    tables = {m: by_seq(job, m, number, limit) for m in job.groups[number].ranks}
    seqs = sorted(set().union(*tables.values()))[-limit:]
    odd = odd_ones(job, tables, seqs)
    rows = {m: [cell(job, m, number, seq, tables[m].get(seq), (m, seq) in odd) for seq in seqs] for m in tables}
    return pd.DataFrame.from_dict(rows, orient="index", columns=seqs).rename_axis(index="rank", columns="seq")


def operations(
    found: run.Run, group: str | None = None, around: int = 8, options: store.Options | None = None
) -> pd.DataFrame:
    """What each rank issued around the point where members part: one row a sequence number, one column a rank."""
    job, _ = open_job(found, options)
    number = group_number(job, group)
    if number is None:
        return pd.DataFrame(index=pd.Index([], name="seq"))
    tables = {m: by_seq(job, m, number) for m in job.groups[number].ranks if m in job.ranks}
    every = sorted(set().union(*tables.values()))
    parted = next(
        (s for s in every if len({m for m in tables if s in tables[m]}) < len(tables) or differ(job, tables, s)), None
    )
    middle = every.index(parted) if parted is not None else len(every)
    shown = every[max(0, middle - around) : middle + around + 1]
    rows = [{m: label(job, table.get(seq)) for m, table in tables.items()} for seq in shown]
    return pd.DataFrame(rows, index=pd.Index(shown, name="seq"), columns=list(tables))


def folded(table: pd.DataFrame, axis: str = "index") -> pd.DataFrame:
    """A `matrix` (or, over its columns, `operations`) with ranks that read the same put together: `0-61, 63`."""
    by_rank = table if axis == "index" else table.T
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, row in zip(by_rank.index, by_rank.to_numpy().tolist(), strict=True):
        alike.setdefault(tuple(row), []).append(int(rank))
    rows = pd.DataFrame(
        list(alike), index=pd.Index(map(rank_ranges, alike.values()), name="ranks"), columns=by_rank.columns
    )
    return rows if axis == "index" else rows.T


def places(found: run.Run, options: store.Options | None = None) -> pd.DataFrame:
    """Where the ranks stand, most of them first: `ranks` (list), `name`, `place`, `said`.

    `said` is a line such as `62 ranks in all_gather at job/model.py:212`.
    """
    rows = [{**crowd._asdict(), "said": crowd.said()} for crowd in crowds(*open_job(found, options))]
    return pd.DataFrame(rows, columns=["ranks", "name", "place", "said"])


def stacks(found: run.Run, options: store.Options | None = None) -> pd.DataFrame:
    """Stacks merged over ranks, outermost first, in tree order.

    Columns: depth, name, place, ranks (list), filename, line, own (not PyTorch's or Python's).
    """
    job, side = open_job(found, options)
    merged: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted({*job.ranks, *side.stack_files}):
        state = job.ranks.get(rank)
        frames = side.main_stack(rank) or (job.frames(state.front) if state and state.front else [])
        path = tuple(reversed(frames))
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


def groups(found: run.Run, options: store.Options | None = None) -> pd.DataFrame:
    """`name`, `desc`, `members`, `waiting`: the groups of a job, those with most waiting ranks first."""
    job, _ = open_job(found, options)
    rows = [
        {"name": g.name, "desc": g.desc, "members": g.ranks, "waiting": waiting(job, number)}
        for number, g in enumerate(job.groups)
    ]
    frame = pd.DataFrame(rows, columns=["name", "desc", "members", "waiting"])
    return frame.sort_values("waiting", ascending=False, kind="stable", ignore_index=True)


@lru_cache(maxsize=2)  # faces ask several questions of one run, and the same ones at every redraw
def open_job(found: run.Run, options: store.Options | None) -> tuple[Job, Side]:
    dumps, side = open_set(found)
    return load_job(dumps.rounds[0], side, options or store.Options()), side


def group_number(job: Job, name: str | None) -> int | None:
    """The group of that name or description; without one, the group that most ranks stand in."""
    if not job.groups:
        return None
    if name is None:
        return max(range(len(job.groups)), key=lambda number: (waiting(job, number), len(job.groups[number].ranks)))
    return next((i for i, g in enumerate(job.groups) if name in (g.name, g.desc)), None)


def waiting(job: Job, number: int) -> int:
    return sum(state.front is not None and state.front.group == number for state in job.ranks.values())


def by_seq(job: Job, rank: int, group: int, limit: int | None = None) -> dict[int, Op]:
    """A rank's collectives in a group, or the last `limit` of them."""
    held = {op.seq: op for op in job.ranks[rank].in_group(group)} if rank in job.ranks else {}
    return held if limit is None or len(held) <= limit else {seq: held[seq] for seq in sorted(held)[-limit:]}


def differ(job: Job, tables: dict[int, dict[int, Op]], seq: int) -> bool:
    return len({comparable(job.signature(table[seq])) for table in tables.values() if seq in table}) > 1


def odd_ones(job: Job, tables: dict[int, dict[int, Op]], seqs: Iterable[int]) -> set[tuple[int, int]]:
    """(rank, seq) of operations that most of the group did not issue."""
    odd = set()
    for seq in seqs:
        if not differ(job, tables, seq):
            continue
        here = {m: comparable(job.signature(table[seq])) for m, table in tables.items() if seq in table}
        usual = pd.Series([str(v) for v in here.values()]).mode()
        odd |= {(m, seq) for m, value in here.items() if str(value) != usual[0] or len(usual) > 1}
    return odd


def cell(job: Job, rank: int, group: int, seq: int, op: Op | None, is_odd: bool) -> str:
    state = job.ranks.get(rank)
    if state is None:
        return "no dump"
    if op is None:
        return "missing" if seq > state.enqueued(group) else ""
    return "mismatch" if is_odd else "done" if op.done else "started" if op.started else "scheduled"


def label(job: Job, op: Op | None) -> str:
    """`all_reduce 4x4 Float (train.py:12)`."""
    if op is None:
        return ""
    signature, line = job.signature(op), job.line(op)
    where = f" ({source_line(line.filename, line.line)})" if line else ""
    return f"{signature.operation} {signature.shape}{where}"
