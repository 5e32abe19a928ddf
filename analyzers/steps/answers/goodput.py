"""Where the wall time of a run went, to the nanosecond: what trained, and what did not."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.answers.stragglers import late_from
from analyzers.steps.model import Goodput, Steps
from analyzers.steps.reading.log_lines import Array
from analyzers.steps.robust_statistics import deviation

PHASES: Mapping[str, tuple[str, ...]] = {
    "data": ("data_wait", "h2d"),
    "checkpoint": ("ckpt_save",),
    "evaluation": ("eval",),
    "gc": ("gc",),
    "recording": ("profiler", "snapshot", "log"),
}
"""Parts of a step that do not train."""
PARTS = ("productive", *PHASES, "stall", "startup", "restart", "redone", "between", "ending")
"""`stall`: waiting for late ranks, or slow for no known reason. `redone`: steps whose work a restart lost. `restart`:
from the last step before it to the first one after it. `ending`: ranks that stopped earlier than others.
"""
LATEST_NS, LONGEST_NS = 1 << 62, 1 << 55
"""The year 2116 and a step of a year: rows beyond are no record of anything."""
TOGETHER = 64
"""Ranks whose rows are looked at together; more take more memory than time."""
ALL = slice(None)
OUTLIER = 6.0
"""Robust deviations beyond which a step that only trains was stalled."""


def goodput(steps: Steps, late: Lateness) -> Goodput | None:
    """The mean over ranks; None where the logs do not tell when steps were."""
    table, bounds = by_rank(steps, late), extent(steps)
    if bounds is None:
        return None
    wall = int(table.iloc[0].sum())
    parts = shared([sum(table[name].tolist()) for name in PARTS], len(table))
    named = {name: ns for name, ns in zip(PARTS, parts, strict=True) if ns}
    return Goodput(
        started_ns=bounds[0],
        wall_ns=wall,
        parts=named,
        productive=named.get("productive", 0) / wall if wall else 0.0,
    )


def shared(sums: Sequence[int], count: int) -> list[int]:
    """Sums divided by a count so that the quotients still add up: the largest remainders are rounded up."""
    upward = sum(value % count for value in sums) // count
    most = sorted(range(len(sums)), key=lambda i: -(sums[i] % count))[:upward]
    return [value // count + (i in most) for i, value in enumerate(sums)]


def by_rank(steps: Steps, late: Lateness) -> pd.DataFrame:
    """Ns of each part, a row a rank; each row adds up to the wall time of the run. Empty where no time is told."""
    bounds = extent(steps)
    if bounds is None:
        return pd.DataFrame()
    stall_ns = stalled(steps, late)
    ranks = (steps.ranks[at : at + TOGETHER] for at in range(0, len(steps.ranks), TOGETHER))
    tables = [of_ranks(steps, rows, stall_ns, bounds) for few in ranks if len(rows := timeline(steps, few))]
    return pd.concat(tables).rename_axis("rank").astype(np.int64)[list(PARTS)]


def of_ranks(steps: Steps, rows: pd.DataFrame, stall_ns: Array, bounds: tuple[int, int]) -> pd.DataFrame:
    """The same of the ranks in some rows of a timeline."""
    begin, end = bounds
    rows["dur_ns"] = np.minimum(rows["dur_ns"], following(rows, end) - rows["start_ns"])
    parts = inside(steps, rows, stall_ns) | outside(rows, begin, end)
    return pd.DataFrame(parts).groupby(rows["rank"].to_numpy()).sum()


def extent(steps: Steps) -> tuple[int, int] | None:
    """When the first rank started, else its first step, and when the last step ended; None where no time is told."""
    starts, ends = [], []
    for table in (steps.table, steps.redone):
        start, length = (table[name].to_numpy() for name in ("start_ns", "dur_ns"))
        known = timed(table)
        starts += [int(start[known].min())] if known.any() else []
        ends += [int((start + length * table["covers"].to_numpy())[known].max())] if known.any() else []
    first = (start.started_ns for start in steps.starts if start.started_ns > 0)
    return (min([*starts, *first]), max(ends)) if starts else None


def timed(table: pd.DataFrame) -> Array:
    """Rows that tell when they were and how long, and can be true."""
    length = table["dur_ns"].to_numpy().astype(float) * table["covers"].to_numpy()
    start = table["start_ns"].to_numpy()
    found: Array = (start >= 1) & (start <= LATEST_NS) & (length >= 0) & (length <= LONGEST_NS)
    return found


def timeline(steps: Steps, ranks: Sequence[int]) -> pd.DataFrame:
    """The rows of some ranks, which follow each other, with a time, in order of rank and time.

    `row` is that of the table, -1 for those that were redone.
    """
    columns = ["rank", "session", "start_ns", "dur_ns", "covers"]
    first, last = np.searchsorted(steps.table["rank"].to_numpy(), [ranks[0], ranks[-1] + 1])
    kept = steps.table.iloc[first:last][columns].assign(row=np.arange(first, last))
    again = steps.redone[steps.redone["rank"].between(ranks[0], ranks[-1])]
    rows = pd.concat([kept, again[columns].assign(row=-1)], ignore_index=True)
    rows = rows[timed(rows)]
    rows["dur_ns"] *= rows["covers"]
    return rows.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)


def following(rows: pd.DataFrame, end: int) -> Array:
    """When the next row of the same rank starts, of the last one `end`."""
    after = np.append(rows["start_ns"].to_numpy()[1:], end)
    after[np.append(changes_rank(rows), True)] = end
    return after


def changes_rank(rows: pd.DataFrame) -> Array:
    """Whether a row is the last of its rank, for all but the last."""
    ranks = rows["rank"].to_numpy()
    return np.asarray(ranks[1:] != ranks[:-1])


def inside(steps: Steps, rows: pd.DataFrame, stall_ns: Array) -> dict[str, Array]:
    """What the time in steps went for. Parts take what is left of a step in turn, the rest trained."""
    row, left = rows["row"].to_numpy(), rows["dur_ns"].to_numpy().copy()
    again = row < 0
    parts = {"redone": np.where(again, left, 0)}
    left[again] = 0
    wanted = {part: phase_ns(steps, names, row) for part, names in PHASES.items()} | {"stall": stall_ns[row]}
    for part, ns in wanted.items():
        taken = np.where(again, 0, np.minimum(left, ns * rows["covers"].to_numpy()))
        parts[part] = np.maximum(taken, 0)
        left = left - parts[part]
    return parts | {"productive": left}


def phase_ns(steps: Steps, names: tuple[str, ...], rows: Array | slice = ALL) -> Array:
    """What phases took together, in rows of the table."""
    known = [steps.phases.at(name, rows) for name in names if name in steps.phases]
    return np.rint(sum(known, np.zeros(len(steps.table))[rows]) * 1e9).astype(np.int64)


def stalled(steps: Steps, late: Lateness) -> Array:
    """Ns of each row that went for waiting, for late ranks or out of line with the other steps."""
    work_ns = steps.table["dur_ns"].to_numpy() - sum(phase_ns(steps, names) for names in PHASES.values())
    waited_ns = np.rint(waiting(steps, late) * 1e9).astype(np.int64)
    plain = steps.plain.to_numpy()
    typical = pd.Series(work_ns[plain]).groupby(steps.table["rank"].to_numpy()[plain])
    if not plain.any():
        return waited_ns
    middle, spread = typical.median(), typical.agg(lambda ns: deviation(ns.to_numpy()))
    ranks = steps.table["rank"].to_numpy()
    usual = middle.reindex(ranks).to_numpy()
    beyond = work_ns - usual
    odd = plain & (beyond > OUTLIER * spread.reindex(ranks).to_numpy()) & (beyond > 0.5 * usual)
    return np.maximum(waited_ns, np.where(odd, beyond, 0).astype(np.int64))


def waiting(steps: Steps, late: Lateness) -> Array:
    """Seconds of each row spent waiting for the latest rank, in steps where one is late."""
    rows = np.zeros(len(steps.table))
    if not late.told or not len(late):
        return rows
    worst = late.excess.max(axis=1)
    waits = late.excess.rsub(worst, axis=0).where(worst > late_from(late), 0.0)
    step = waits.index.get_indexer(pd.Index(steps.table["step"]))
    rank = waits.columns.get_indexer(pd.Index(steps.table["rank"]))
    known = (step >= 0) & (rank >= 0)
    rows[known] = waits.to_numpy()[step[known], rank[known]]
    return rows


def outside(rows: pd.DataFrame, begin: int, end: int) -> dict[str, Array]:
    """What the time between steps went for, charged to the row after it, at the end to the row before."""
    starts, ends = rows["start_ns"].to_numpy(), (rows["start_ns"] + rows["dur_ns"]).to_numpy()
    first = np.insert(changes_rank(rows), 0, True)
    last = np.append(changes_rank(rows), True)
    before = np.insert(ends[:-1], 0, begin)
    gap = starts - np.where(first, begin, before)
    session = rows["session"].to_numpy()
    again = ~first & np.insert(session[1:] != session[:-1], 0, False)
    return {
        "startup": np.where(first, gap, 0),
        "restart": np.where(again, gap, 0),
        "between": np.where(first | again, 0, gap),
        "ending": np.where(last, end - ends, 0),
    }
