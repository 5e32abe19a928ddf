"""Divide the wall time of a run, to the nanosecond, into training and everything else.

Each rank has a timeline from the first start of the run to its end. A step is divided into *parts*, such as `data` or
`checkpoint`. In the order of PARTS, each part gets the time of its phases, but at most what is left of the step; the
rest is `productive`. The time between two steps counts for the later step. So the parts of every rank add up to the
wall time.

Example, in seconds: a rank starts at 0; step 1 runs from 10 to 14 (1 s of it `data_wait`) and step 2 from 14 to 17 (2 s
`ckpt_save`). The job starts again, and step 2 is done again from 30 to 33. Then `startup` is 10, `data` 1, `redone` 3
(the first run of step 2, whose work was lost), `restart` 13 (from 17 to 30) and `productive` 3 + 3: 33 in all.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyzers.columns import Floats, Integers, Mask
from analyzers.steps.answers.lateness import Lateness
from analyzers.steps.answers.stragglers import late_thresholds
from analyzers.steps.model import Goodput
from analyzers.steps.robust_statistics import robust_deviation
from analyzers.steps.table import Steps

PHASES: Mapping[str, tuple[str, ...]] = {
    "data": ("data_wait", "h2d"),
    "checkpoint": ("ckpt_save",),
    "evaluation": ("eval",),
    "gc": ("gc",),
    "recording": ("profiler", "snapshot", "log"),
}
"""{part of the wall time: the phases of a step that belong to it}."""
PARTS = ("productive", *PHASES, "stall", "startup", "restart", "redone", "between", "ending")
"""All parts of the wall time.

`productive` is the rest of a step that no other part takes. The parts from `data` to `recording` are phases of a step
(`PHASES`). `stall` is the time lost to waiting for late ranks or to an unusually long step, `redone` the time of
steps whose work a restart lost. `startup` is the time before the first step, `restart` the time from the last step of
a process to the first step of the next one, `between` any other time between two steps, and `ending` the time after a
rank's last step.
"""
LATEST_NS, _LONGEST_NS = 1 << 62, 1 << 55
"""The latest plausible time (the year 2116) and the longest plausible step (a year), in ns."""
_RANKS_AT_ONCE = 64
"""The number of ranks that are processed together; more would take more memory but no less time."""
_ALL_ROWS = slice(None)
_OUTLIER, _OUTLIER_SHARE = 6.0, 0.5
"""The limits above the median from which on a plain step (one that did nothing but train) counts as stalled.

The first number is in robust standard deviations, the second is a share of the median; a stalled step exceeds both.
"""


def goodput(steps: Steps, late: Lateness) -> Goodput | None:
    """Return how the wall time of a run is divided into parts, as the mean over ranks.

    `late` has the lateness of each rank in each step; the time that ranks wait for a late rank counts as stalled. The
    result is None if the logs record no start times of steps.
    """
    table, bounds = goodput_by_rank(steps, late), extent(steps)
    if bounds is None:
        return None
    wall = int(table.iloc[0].sum())
    parts = divided([sum(table[name].tolist()) for name in PARTS], len(table))
    named = {name: ns for name, ns in zip(PARTS, parts, strict=True) if ns}
    return Goodput(
        started_ns=bounds[0],
        wall_ns=wall,
        parts=named,
        productive=named.get("productive", 0) / wall if wall else 0.0,
    )


def divided(sums: Sequence[int], count: int) -> list[int]:
    """Return each sum divided by `count`, rounded so that the results add up to the total divided by `count`.

    The latter is rounded down. Example: `divided([5, 3], 4)` is `[1, 1]`, because (5 + 3) / 4 = 2 (largest remainder
    method).
    """
    round_up = sum(value % count for value in sums) // count
    largest = sorted(range(len(sums)), key=lambda i: -(sums[i] % count))[:round_up]
    return [value // count + (i in largest) for i, value in enumerate(sums)]


def goodput_by_rank(steps: Steps, late: Lateness) -> pd.DataFrame:
    """Return the ns of each part of the wall time (columns) on each rank (rows); each row adds up to the wall time.

    `late` has the lateness of each rank in each step; the time that ranks wait for a late rank counts as stalled. The
    table is empty if the logs do not record start times of steps.
    """
    bounds = extent(steps)
    if bounds is None:
        return pd.DataFrame()
    stall_ns = _stalled_ns(steps, late)
    groups = (steps.ranks[first : first + _RANKS_AT_ONCE] for first in range(0, len(steps.ranks), _RANKS_AT_ONCE))
    tables = [parts_of(steps, rows, stall_ns, bounds) for ranks in groups if len(rows := timeline(steps, ranks))]
    return pd.concat(tables).rename_axis("rank").astype(np.int64)[list(PARTS)]


def parts_of(steps: Steps, rows: pd.DataFrame, stall_ns: Integers, bounds: tuple[int, int]) -> pd.DataFrame:
    """Return a table of the ns that each rank (row) spent on each part of the wall time (column).

    `rows` has the steps of some ranks, as `timeline` returns them. `stall_ns` has the stalled time for each row of
    `steps.table`; `bounds` are the start and the end of the run (Unix ns).
    """
    begin, end = bounds
    # Clocks that were set, or damaged rows, may overlap: a step ends at the latest where the next one starts.
    rows["dur_ns"] = np.minimum(rows["dur_ns"], _next_start(rows, end) - rows["start_ns"])
    parts = _within_steps(steps, rows, stall_ns) | _between_steps(rows, begin, end)
    return pd.DataFrame(parts).groupby(rows["rank"].to_numpy()).sum()


def extent(steps: Steps) -> tuple[int, int] | None:
    """Return the start and the end of the run, in Unix ns; None if the logs do not record start times of steps.

    The start is the earliest start of a process or a step, the end is the latest end of a step.
    """
    starts, ends = [], []
    for table in (steps.table, steps.redone):
        start, length = (table[name].to_numpy() for name in ("start_ns", "dur_ns"))
        timed = _is_timed(table)
        starts += [int(start[timed].min())] if timed.any() else []
        ends += [int((start + length * table["covers"].to_numpy())[timed].max())] if timed.any() else []
    started = (start.started_ns for start in steps.starts if start.started_ns > 0)
    return (min([*starts, *started]), max(ends)) if starts else None


def _is_timed(table: pd.DataFrame) -> Mask:
    """Return a mask of the rows of a table of steps whose start time and duration are recorded and plausible."""
    # As floats: the product of damaged numbers can overflow int64.
    length = table["dur_ns"].to_numpy().astype(float) * table["covers"].to_numpy()
    start = table["start_ns"].to_numpy()
    timed: Mask = (start >= 1) & (start <= LATEST_NS) & (length >= 0) & (length <= _LONGEST_NS)
    return timed


def timeline(steps: Steps, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the steps of some ranks in order of rank and start time; the ranks must be consecutive.

    A step that was done again after a restart has a row for each run. Column `row` is the row number in `steps.table`,
    or -1 for the earlier run of such a step. `dur_ns` is multiplied by the number of steps that a row covers. Steps
    whose start time or duration is not recorded are left out.
    """
    columns = ["rank", "session", "start_ns", "dur_ns", "covers"]
    first, last = np.searchsorted(steps.table["rank"].to_numpy(), [ranks[0], ranks[-1] + 1])
    kept = steps.table.iloc[first:last][columns].assign(row=np.arange(first, last))
    redone = steps.redone[steps.redone["rank"].between(ranks[0], ranks[-1])]
    rows = pd.concat([kept, redone[columns].assign(row=-1)], ignore_index=True)
    rows = rows[_is_timed(rows)]
    # A row of a coarse log covers several steps, and its duration is their mean.
    rows["dur_ns"] *= rows["covers"]
    return rows.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)


def _next_start(rows: pd.DataFrame, end: int) -> Integers:
    """Return, for each step in `rows` (a `timeline` table), the start of the next step of the same rank, in Unix ns.

    For the last step of a rank the result is `end`.
    """
    following = np.append(rows["start_ns"].to_numpy()[1:], end)
    # Unlike a shift within groups, this is one pass over the rows of all ranks.
    following[np.append(_rank_changes(rows), True)] = end
    return following


def _rank_changes(rows: pd.DataFrame) -> Mask:
    """Return, for each row of a `timeline` table except the last, whether the next row belongs to a different rank."""
    ranks = rows["rank"].to_numpy()
    return np.asarray(ranks[1:] != ranks[:-1])


def _within_steps(steps: Steps, rows: pd.DataFrame, stall_ns: Integers) -> dict[str, Integers]:
    """Return {part: ns of each step that belong to this part}, for the parts of the wall time inside of steps.

    The arrays have a value for each step in `rows` (a `timeline` table); `stall_ns` has a value for each row of
    `steps.table`. Each part in turn takes at most the time that the earlier parts left; the rest is `productive`.
    """
    row, rest = rows["row"].to_numpy(), rows["dur_ns"].to_numpy().copy()
    # The work of a step that was done again is lost, whatever it went for.
    redone = row < 0
    parts = {"redone": np.where(redone, rest, 0)}
    rest[redone] = 0
    wanted = {part: _phase_ns(steps, names, row) for part, names in PHASES.items()} | {"stall": stall_ns[row]}
    for part, ns in wanted.items():
        taken = np.where(redone, 0, np.minimum(rest, ns * rows["covers"].to_numpy()))
        # A phase that a damaged log makes negative takes nothing.
        parts[part] = np.maximum(taken, 0)
        rest = rest - parts[part]
    return parts | {"productive": rest}


def _phase_ns(steps: Steps, names: tuple[str, ...], rows: Integers | slice = _ALL_ROWS) -> Integers:
    """Return the summed duration of the named phases in ns, for each of the given rows of `steps.table`."""
    logged = [steps.phases.at(name, rows) for name in names if name in steps.phases]
    return _to_ns(sum(logged, np.zeros(len(steps.table))[rows]))


def _to_ns(seconds: Floats) -> Integers:
    """Return durations in whole ns; unknown durations become 0, and impossibly long ones (damaged logs) are limited."""
    # Whatever a log claims, sums of a few durations then stay below what int64 holds.
    limited = np.clip(np.nan_to_num(seconds), -_LONGEST_NS / 1e9, _LONGEST_NS / 1e9)
    return np.rint(limited * 1e9).astype(np.int64)


def _stalled_ns(steps: Steps, late: Lateness) -> Integers:
    """Return, for each row of `steps.table`, the ns lost to waiting for late ranks or to an unusually long step."""
    work_ns = steps.table["dur_ns"].to_numpy() - sum(_phase_ns(steps, names) for names in PHASES.values())
    waited_ns = _to_ns(_waited_s(steps, late))
    plain = steps.plain.to_numpy()
    if not plain.any():
        return waited_ns
    # By rank, as the stages of a pipeline differ in every step.
    by_rank = pd.Series(work_ns[plain]).groupby(steps.table["rank"].to_numpy()[plain])
    median, spread = by_rank.median(), by_rank.agg(lambda ns: robust_deviation(ns.to_numpy()))
    ranks = steps.table["rank"].to_numpy()
    usual = median.reindex(ranks).to_numpy()
    extra = work_ns - usual
    outlier = plain & (extra > _OUTLIER * spread.reindex(ranks).to_numpy()) & (extra > _OUTLIER_SHARE * usual)
    return np.maximum(waited_ns, np.where(outlier, extra, 0).astype(np.int64))


def _waited_s(steps: Steps, late: Lateness) -> Floats:
    """Return, for each row of `steps.table`, the seconds that its rank waited for the latest rank of the step.

    The value is 0 in steps in which no rank counts as late.
    """
    rows = np.zeros(len(steps.table))
    if not late.is_known or not len(late):
        return rows
    latest = late.excess.max(axis=1)
    waits = late.excess.rsub(latest, axis=0).where(latest > late_thresholds(late), 0.0)
    step = waits.index.get_indexer(pd.Index(steps.table["step"]))
    rank = waits.columns.get_indexer(pd.Index(steps.table["rank"]))
    both = (step >= 0) & (rank >= 0)
    rows[both] = waits.to_numpy()[step[both], rank[both]]
    return rows


def _between_steps(rows: pd.DataFrame, begin: int, end: int) -> dict[str, Integers]:
    """Return {part: ns}, for the parts of the wall time that lie outside of steps, such as `startup` and `restart`.

    The arrays have a value for each step in `rows` (a `timeline` table). The time before a step is in the row of this
    step; the time after a rank's last step is in the row of this last step. `begin` and `end` are the start and the end
    of the run (Unix ns).
    """
    starts, ends = rows["start_ns"].to_numpy(), (rows["start_ns"] + rows["dur_ns"]).to_numpy()
    first = np.insert(_rank_changes(rows), 0, True)
    last = np.append(_rank_changes(rows), True)
    previous_end = np.insert(ends[:-1], 0, begin)
    gap = starts - np.where(first, begin, previous_end)
    # A new session is a new process: what lies between is the restart.
    session = rows["session"].to_numpy()
    restarted = ~first & np.insert(session[1:] != session[:-1], 0, False)
    return {
        "startup": np.where(first, gap, 0),
        "restart": np.where(restarted, gap, 0),
        "between": np.where(first | restarted, 0, gap),
        "ending": np.where(last, end - ends, 0),
    }
