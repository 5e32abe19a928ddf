"""Map the columns and rows of any log to the steps and ranks of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers import run
from analyzers.columns import Column, Floats, Integers, Mask
from analyzers.errors import InputError
from analyzers.steps.columns import (
    SIZE_UNITS,
    TIME_UNITS,
    UNITS_OF,
    NumberedBy,
    Quantity,
    RawTable,
    first_present,
    meaning_of,
)
from analyzers.steps.model import MappedColumn, MappedLog
from analyzers.steps.reading.log_lines import BROKEN, FINITE, STARTS_AT_MOST, UNKNOWN, Arrays, Content
from analyzers.words import quantity

UNKNOWN_UNIT = "unknown"
_PLAIN_BYTES = 1e7
"""A memory size of at least this number without a unit must be in bytes: no device has so many of a larger unit."""
_SECONDS_BY_WRITER: tuple[frozenset[str], ...] = tuple(
    map(frozenset, (("data_time", "time"), ("Time", "Data"), ("iter_time", "remaining_time"), ("iter_time", "iter")))
)
"""Sets of columns by which trainers are recognised that log times in seconds.

They are mmengine and detectron2, PyTorch's ImageNet example (its `AverageMeter` of `time.time()`), and litgpt.
"""
_MIB_BY_WRITER = frozenset(("data_time", "time", "memory"))
"""The columns by which mmengine is recognised; it logs `memory` in MiB."""
_GIB_BY_WRITER = frozenset(("tokens_per_second_per_gpu",))
"""The column by which torchtune is recognised; it logs `peak_memory_*` in GiB."""
_FEW_ROWS, _TIMED_SHARE = 5, 0.02
"""In a table with more than FEW_ROWS rows, at least TIMED_SHARE of the rows of a column of step times have a value."""
_COMBINED = (Quantity.STEP,)
"""Quantities that are read from several columns, because the lines of one log may have them in different columns."""

ColumnMap = tuple[tuple[str, str], ...]
"""The user's choice of columns: pairs of (quantity, column name)."""


def parsed_map(texts: Iterable[str]) -> ColumnMap:
    """Return (quantity, column) of each `--map QUANTITY=COLUMN` option.

    Raises:
        InputError: A text has a different form, or its quantity is unknown.
    """
    return tuple(_parsed_pair(text) for text in texts)


def _parsed_pair(text: str) -> tuple[str, str]:
    """Return (quantity, column) from the text of a `--map` option.

    Raises:
        InputError: The text has a different form, or its quantity is unknown.
    """
    quantity, separator, column = text.partition("=")
    quantity, column = quantity.strip(), column.strip()
    if not separator or not column:
        raise InputError(f"--map {text}: not of the form QUANTITY=COLUMN", "write --map loss=train/nll")
    if meaning_of(quantity) is None:
        known = ", ".join(sorted(Quantity))
        raise InputError(
            f"--map {text}: unknown quantity {quantity}", f"known are {known}; a unit may follow: step_time_ms"
        )
    return quantity, column


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that each quantity is read from, the preferred one first, and the unit of each column.

    `chosen` has the columns that the user named.
    """

    by_quantity: Mapping[Quantity, Sequence[str]]
    units: Mapping[str, str]
    chosen: frozenset[str]

    def used(self, quantity: Quantity) -> Sequence[str]:
        """Return the columns from which a quantity is read: only the preferred one, or none.

        The step number is an exception: rows in which the preferred column has no value use further columns.
        """
        names = self.by_quantity.get(quantity, ())
        return names if quantity in _COMBINED else names[:1]

    def described(self, table: RawTable) -> list[MappedColumn]:
        """Return, for each column of the table, the quantity and the unit that it is read as.

        Columns that stand for no quantity come last.
        """
        quantity_of = {name: quantity for quantity in self.by_quantity for name in self.used(quantity)}
        rows = [
            MappedColumn(
                name=name,
                quantity=quantity_of.get(name),
                unit=self.units.get(name, ""),
                chosen=name in self.chosen,
                last=last_value(table.columns[name]),
            )
            for name in table.columns
        ]
        order = {quantity: position for position, quantity in enumerate(Quantity)}
        return sorted(rows, key=lambda row: order[row.quantity] if row.quantity else len(order))


def last_value(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def _choice_of(table: RawTable, wanted: ColumnMap = ()) -> ColumnChoice:
    """Return a `ColumnChoice` for a table: which of its columns stand for which quantity.

    `wanted` has the (quantity, column) pairs given by the user; all other columns are recognised by name.
    """
    ranked: dict[Quantity, list[tuple[float, float, str]]] = {}
    units: dict[str, str] = {}
    chosen = set()
    for name, values in table.columns.items():
        meaning = meaning_of(name)
        if meaning and not _is_summary(meaning.quantity, _count_of(values), len(table)):
            # Of columns whose names are equally good, the one with the most values comes first.
            ranked.setdefault(meaning.quantity, []).append((meaning.preference, -_count_of(values), name))
            units[name] = meaning.unit
    for text, name in wanted:
        meaning = meaning_of(text)
        if meaning and name in table.columns:
            own = meaning_of(name)
            ranked = {kind: [row for row in rows if row[2] != name] for kind, rows in ranked.items()}
            ranked.setdefault(meaning.quantity, []).append((-1, 0, name))
            units[name] = meaning.unit or _unit_in(name, meaning.quantity) or (own.unit if own else "")
            chosen.add(name)
    by_quantity = {kind: [name for *_, name in sorted(rows)] for kind, rows in ranked.items() if rows}
    for kind in UNITS_OF.keys() & by_quantity.keys():
        for name in by_quantity[kind]:
            units[name] = units[name] or _implied_unit(table, kind, name)
    return ColumnChoice(by_quantity, units, frozenset(chosen))


def _is_summary(quantity: Quantity, values: int, rows: int) -> bool:
    """Return whether a column of step times or rates has so few values that they must be averages of the whole run.

    Some trainers print such a rate once, at the end. `values` is how many of the table's `rows` have a number in the
    column.
    """
    return (
        quantity in (Quantity.STEP_TIME, Quantity.STEP_RATE)
        and rows > _FEW_ROWS
        and values < max(2, _TIMED_SHARE * rows)
    )


def _count_of(values: Floats) -> int:
    return int(np.count_nonzero(~np.isnan(values)))


def _unit_in(name: str, quantity: Quantity) -> str:
    """Return the unit at the end of a column's name, such as `ms` of `took_ms`; empty if none fits the quantity."""
    from analyzers.steps.columns import split_unit, words_of

    _, unit = split_unit(words_of(name))
    return unit if unit in UNITS_OF.get(quantity, ()) else ""


def _implied_unit(table: RawTable, quantity: Quantity, name: str) -> str:
    """Return the unit of a column whose name has none, judged by the trainer that wrote it or by its values.

    The trainer is recognised by its other columns; large values of memory must be bytes. The result is `unknown` if
    neither shows the unit.
    """
    names = {*table.columns, *table.texts}
    if quantity is Quantity.CLOCK:
        return "s"
    if quantity in (Quantity.STEP_TIME, Quantity.DATA_TIME):
        return "s" if any(writer <= names for writer in _SECONDS_BY_WRITER) else UNKNOWN_UNIT
    if name == "memory" and names >= _MIB_BY_WRITER:
        return "mib"
    if names & _GIB_BY_WRITER:
        return "gib"
    values = table.columns[name]
    return "bytes" if np.nanmax(values, initial=0.0) >= _PLAIN_BYTES else UNKNOWN_UNIT


# Turn the rows of another trainer's log into steps: find the step and time of each row, and merge rows of one step.
#
# Trainers differ in how they write steps. Some write one step in several rows (Lightning and wandb: training and
# validation losses in separate rows), some write a step again after a restart, some never write the step number. Rows
# of one step are merged, and each column keeps its last value. If the step number goes back, the job was restarted.

_KEPT_NUMBERS = 64
"""The most columns without a known meaning that are kept."""
_LARGEST_STEP = 1 << 53
_LONGEST_NS = 4e18
_LONGEST_STEP_S = 86400.0
_UNIX_S = (1e9, 9e9)
"""The range of clock times that can be Unix seconds (2001 to 2255)."""
_BACKWARD_SHARE = 0.05
"""The share of the rows at which the step number goes back above which the rows are taken to be out of order.

If it goes back less often, each time is taken for a restart.
"""


@dataclass(frozen=True)
class MappedRows:
    """The steps from a log of another trainer, as columns (`content`), and how the log's columns were read (`log`)."""

    content: Content
    log: MappedLog


@dataclass
class Rows:
    """The rows of a log that have a step number, in order of rank.

    `attempt` is the number of restarts before each row.
    """

    rank: Integers
    attempt: Integers
    step: Integers
    columns: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.step)


def steps_of_rows(path: str, table: RawTable, wanted: ColumnMap = ()) -> MappedRows:
    """Return the steps in a log of another trainer, and which column was read as which quantity.

    `path` is the path of the log. `wanted` has the (quantity, column) pairs given by the user.
    """
    choice = _choice_of(table, wanted)
    # Counters and times alone are no log of training, so none of their rows is a step.
    if not choice.by_quantity.keys() - {Quantity.EPOCH, Quantity.RANK, Quantity.CLOCK, Quantity.STEP}:
        table = RawTable(texts=table.texts)
        choice = _choice_of(table)
    steps, numbered_by = _numbered_steps(table, choice)
    usable = ~np.isnan(steps)
    dropped = int(len(steps) - usable.sum())
    rows = _ordered_rows(table, choice, steps, usable)
    merged, duplicates = _merged_rows(rows, choice)
    timed_by_clock = not choice.used(Quantity.STEP_TIME) and not choice.used(Quantity.STEP_RATE)
    content = _content_of_rows(merged, choice)
    log = MappedLog(
        path=path,
        numbered_by=numbered_by,
        columns=choice.described(table),
        timed_by_clock=timed_by_clock and bool((content.fixed["dur_ns"] >= 0).any()),
        duplicates=duplicates,
        restarts=int(rows.attempt.max(initial=0)),
        dropped=dropped if numbered_by is NumberedBy.COLUMN else 0,
        texts=table.texts,
        omitted=table.omitted,
    )
    return MappedRows(content, log)


def _numbered_steps(table: RawTable, choice: ColumnChoice) -> tuple[Floats, NumberedBy]:
    """Return the step number of each row (NaN: none), and its source: a column, the epoch or the line number."""
    columns = [table.columns[name] for name in choice.used(Quantity.STEP)]
    steps = _whole_numbers(first_present(columns, len(table)))
    if not np.isnan(steps).all():
        return steps, NumberedBy.COLUMN
    for name in choice.used(Quantity.EPOCH):
        epochs = _whole_numbers(table.columns[name])
        if np.array_equal(epochs, table.columns[name], equal_nan=True) and (np.diff(epochs) >= 1).all():
            return epochs, NumberedBy.EPOCH
    has_value = _rows_with_values(table, choice)
    return np.where(has_value, np.cumsum(has_value), np.nan), NumberedBy.LINE


def _whole_numbers(values: Floats) -> Floats:
    """Return the values, with NaN in place of each value that is not a whole number and so cannot be a step number."""
    return np.where((np.abs(values) < _LARGEST_STEP) & (values == np.floor(values)), values, np.nan)


def _rows_with_values(table: RawTable, choice: ColumnChoice) -> Mask:
    """Return a mask of the rows that are training steps: those with a loss.

    If the log has no losses, these are the rows with any value.
    """
    names = choice.used(Quantity.LOSS) or list(table.columns)
    present = np.zeros(len(table), dtype=bool)
    for name in names:
        present |= ~np.isnan(table.columns[name])
        if name in table.written_nan:
            present |= table.written_nan[name]
    return present


def _ordered_rows(table: RawTable, choice: ColumnChoice, steps: Floats, usable: Mask) -> Rows:
    """Return the rows that have a step number, by rank and in the order in which they were written.

    Each row gets the number of restarts before it. `steps` has the step number of each row of the table, `usable` is
    a mask of the rows that have one.
    """
    rank = first_present([table.columns[name] for name in choice.used(Quantity.RANK)], len(table))
    ranks: Integers = np.where((rank >= 0) & (rank < 1 << 20), rank, UNKNOWN)[usable].astype(np.int64)
    step: Integers = steps[usable].astype(np.int64)
    values = {name: value[usable] for name, value in _kept_columns(table, choice).items()}
    if (ranks[1:] < ranks[:-1]).any():
        order = np.argsort(ranks, kind="stable")
        ranks, step = ranks[order], step[order]
        values = {name: value[order] for name, value in values.items()}
    return Rows(ranks, attempts(ranks, step, _loss_present(values, choice)), step, values)


def _kept_columns(table: RawTable, choice: ColumnChoice) -> dict[str, Floats]:
    """Return, by name, the columns that are read as a quantity, and KEPT_NUMBERS of the other columns.

    A loss or gradient norm that was written as NaN becomes infinite, because NaN means "no value" here.
    """
    used = {name for kind in choice.by_quantity for name in choice.used(kind)}
    others = [name for name in table.columns if name not in used][:_KEPT_NUMBERS]
    kept = {name: np.asarray(table.columns[name]) for name in (*used, *others)}
    for kind in (Quantity.LOSS, Quantity.GRAD_NORM):
        for name in choice.used(kind):
            if name in table.written_nan:
                # Merging rows takes NaN for "no value".
                kept[name] = np.where(table.written_nan[name], np.inf, kept[name])
    return kept


def _loss_present(values: dict[str, Floats], choice: ColumnChoice) -> Mask | None:
    return next((~np.isnan(values[name]) for name in choice.used(Quantity.LOSS)), None)


def attempts(rank: Integers, step: Integers, trained: Mask | None) -> Integers:
    """Return, for each row, how many restarts of its rank came before it: how often the step number had gone back.

    Only rows in the mask `trained` are used (None: all). If the step number goes back very often, the rows are simply
    not in order, and the result is 0 for all rows.
    """
    back = np.zeros(len(step), dtype=bool)
    rows = np.arange(len(step)) if trained is None else np.flatnonzero(trained)
    same = rank[rows][1:] == rank[rows][:-1]
    back[rows[1:]] = same & (step[rows][1:] < step[rows][:-1])
    if back.sum() > max(3, _BACKWARD_SHARE * len(step)):
        return np.zeros(len(step), dtype=np.int64)
    counts = np.cumsum(back)
    first = np.searchsorted(rank, rank)
    # More attempts would get the session numbers of the next file (`loading.Chunk.session`).
    numbers: Integers = np.minimum(counts - counts[first] + back[first], STARTS_AT_MOST - 1)
    return numbers


def _merged_rows(rows: Rows, choice: ColumnChoice) -> tuple[Rows, int]:
    """Return one row for each step of each rank and attempt, and how many repeated rows with a loss were dropped.

    If a step has several rows, the last value of each column is kept.
    """
    steps_up = (
        (rows.step[1:] > rows.step[:-1]) | (rows.rank[1:] != rows.rank[:-1]) | (rows.attempt[1:] != rows.attempt[:-1])
    )
    if steps_up.all():
        return rows, 0
    # The slash keeps these names apart from columns of the log that are called rank or step.
    frame = pd.DataFrame(rows.columns | {"/rank": rows.rank, "/attempt": rows.attempt, "/step": rows.step})
    groups = frame.groupby(["/rank", "/attempt", "/step"], sort=True)
    whole = groups.last().reset_index()
    trained = _loss_present(rows.columns, choice)
    duplicates = 0
    if trained is not None:
        duplicates = int(trained.sum()) - int((~np.isnan(whole[choice.used(Quantity.LOSS)[0]].to_numpy())).sum())
    rank, attempt, step = (whole.pop(name).to_numpy() for name in ("/rank", "/attempt", "/step"))
    return Rows(rank, attempt, step, {str(name): whole[name].to_numpy() for name in whole}), duplicates


def _content_of_rows(rows: Rows, choice: ColumnChoice) -> Content:
    """Return rows of another trainer's log as columns with the names and units of this project's step logs.

    `choice` says which column stands for which quantity.
    """
    count = len(rows)
    fixed: Arrays = {
        name: np.zeros(count, dtype=np.int64)
        for name in ("start_ns", "residual_ns", "tokens", "memory_bytes", "reserved_bytes", "alloc_retries")
    }
    fixed |= {"step": rows.step, "rank": rows.rank, "attempt": rows.attempt}
    for name, kind in (("loss", Quantity.LOSS), ("local_loss", None), ("grad_norm", Quantity.GRAD_NORM)):
        fixed |= _number_columns(name, _quantity_of(rows, choice, kind))
    clock = _clock_s(rows, choice)
    gaps = _step_gaps(rows)
    dur_s = _step_seconds(rows, choice, clock, gaps)
    timed = ~np.isnan(dur_s)
    fixed["dur_ns"] = np.where(timed, np.round(np.nan_to_num(dur_s) * 1e9), UNKNOWN).astype(np.int64)
    fixed["covers"] = np.where(timed, gaps, 1)
    start_s = clock - np.where(timed, np.nan_to_num(dur_s) * gaps, 0.0)
    fixed["start_ns"] = np.round(np.nan_to_num(start_s) * 1e9).astype(np.int64)
    fixed |= sizes(rows, choice)
    rate = _quantity_of(rows, choice, Quantity.TOKENS_PER_S)
    fixed["tokens"] = _whole_or_zero(rate * dur_s)
    data_s = _in_unit(rows, choice, Quantity.DATA_TIME, TIME_UNITS) / 1e9
    phases = {"data_wait": _whole_or_zero(data_s * 1e9)} if not np.isnan(data_s).all() else {}
    fixed["residual_ns"] = np.where(timed, fixed["dur_ns"] - sum(phases.values()), 0)
    named: dict[str, Arrays] = {"phases": phases, "cpu_ns": {}, "device_ns": {}, "seqs": {}}
    return Content(fixed, named, [], _kept_numbers(rows, choice, rate))


def _quantity_of(rows: Rows, choice: ColumnChoice, quantity: Quantity | None) -> Floats:
    """Return the value of a quantity in each row, from the columns that `choice` has for it.

    The value is NaN if the row has none; for the quantity None all values are NaN.
    """
    return first_present([rows.columns[name] for name in (choice.used(quantity) if quantity else ())], len(rows))


def _number_columns(name: str, values: Floats) -> Arrays:
    states = np.where(np.isnan(values), 0, np.where(np.isfinite(values), FINITE, BROKEN)).astype(np.int8)
    return {name: np.where(states == FINITE, values, np.nan), f"{name}_state": states}


def _clock_s(rows: Rows, choice: ColumnChoice) -> Floats:
    seconds = _in_unit(rows, choice, Quantity.CLOCK, TIME_UNITS) / 1e9
    return np.where((seconds > _UNIX_S[0]) & (seconds < _UNIX_S[1]), seconds, np.nan)


def _step_gaps(rows: Rows) -> Integers:
    """Return how many steps each row covers: those since the previous row, or 1 after a start or restart."""
    gaps = np.ones(len(rows), dtype=np.int64)
    same = (rows.rank[1:] == rows.rank[:-1]) & (rows.attempt[1:] == rows.attempt[:-1])
    gaps[1:] = np.where(same, np.maximum(rows.step[1:] - rows.step[:-1], 1), 1)
    return gaps


def _step_seconds(rows: Rows, choice: ColumnChoice, clock: Floats, gaps: Integers) -> Floats:
    """Return, for each row, the duration of a step in seconds; NaN if it is unknown.

    The duration is the logged one, or else computed from the logged rate, or else from `clock`, the time at which each
    row was written. `gaps` is the number of steps that each row covers.
    """
    if choice.used(Quantity.STEP_TIME):
        seconds = _in_unit(rows, choice, Quantity.STEP_TIME, TIME_UNITS) / 1e9
    elif choice.used(Quantity.STEP_RATE):
        rate = _quantity_of(rows, choice, Quantity.STEP_RATE)
        seconds = np.divide(1.0, rate, out=np.full(len(rate), np.nan), where=rate > 0)
    else:
        seconds = np.full(len(rows), np.nan)
        same = (rows.rank[1:] == rows.rank[:-1]) & (rows.attempt[1:] == rows.attempt[:-1])
        seconds[1:] = np.where(same, (clock[1:] - clock[:-1]) / gaps[1:], np.nan)
    return np.where((seconds >= 0) & (seconds < _LONGEST_STEP_S), seconds, np.nan)


def _in_unit(rows: Rows, choice: ColumnChoice, quantity: Quantity, units: dict[str, float]) -> Floats:
    """Return a quantity in each row, converted to its base unit (ns or bytes); NaN if its unit is unknown.

    `units` is {unit: its size in the base unit}.
    """
    used = choice.used(quantity)
    unit = choice.units[used[0]] if used else UNKNOWN_UNIT
    # A logged value may be close to the largest that there is, or a NaN that signals an error when it is used.
    with np.errstate(over="ignore", invalid="ignore"):
        return _quantity_of(rows, choice, quantity) * units.get(unit, np.nan)


def sizes(rows: Rows, choice: ColumnChoice) -> Arrays:
    pairs = (("memory_bytes", Quantity.MEMORY), ("reserved_bytes", Quantity.RESERVED))
    return {name: _whole_or_zero(_in_unit(rows, choice, quantity, SIZE_UNITS)) for name, quantity in pairs}


def _whole_or_zero(values: Floats) -> Integers:
    usable = np.isfinite(values) & (np.abs(values) < _LONGEST_NS)
    return np.round(np.where(usable, values, 0.0)).astype(np.int64)


def _kept_numbers(rows: Rows, choice: ColumnChoice, tokens_per_s: Floats) -> dict[str, Floats]:
    """Return {name: column} of numbers for which this project's step logs have no column.

    These are the learning rate, the epoch and `tokens_per_s`, as far as they are known, and all columns that `choice`
    assigns to no quantity.
    """
    named = {
        "learning_rate": _quantity_of(rows, choice, Quantity.LEARNING_RATE),
        "epoch": _quantity_of(rows, choice, Quantity.EPOCH),
        "tokens_per_s": tokens_per_s,
    }
    used = {name for quantity in choice.by_quantity for name in choice.used(quantity)}
    kept = {name: values for name, values in named.items() if not np.isnan(values).all()}
    return kept | {name: values for name, values in rows.columns.items() if name not in used and name not in kept}


_COVERED = 0.5
"""A log is left out if a longer log of the same rank has at least this share of its steps.

An example is the history of steps that a checkpoint contains.
"""
_COLUMNS_NAMED = 20


@dataclass(frozen=True)
class OtherLog:
    artefact: run.Artefact
    rank: int
    rows: MappedRows

    @property
    def steps(self) -> Integers:
        return self.rows.content.fixed["step"]


def other_log(
    artefact: run.Artefact,
    rank: int,
    columns: Mapping[str, Column],
    meta: dict[str, object],
    number: int,
    wanted: ColumnMap,
) -> OtherLog:
    """Return an `OtherLog` with the steps of one log of another trainer.

    A child process read several logs together into `columns` and `meta`; the names of this log's columns begin with
    `raw` and its `number`. `wanted` has the (quantity, column) pairs given by the user.
    """
    table = RawTable.from_stored(columns, meta, number)
    return OtherLog(artefact, rank, steps_of_rows(str(artefact.path), table, wanted))


def counting_logs(logs: Sequence[OtherLog]) -> tuple[list[OtherLog], list[str]]:
    """Return the logs to use, in their order, and sentences on the logs that are left out.

    A log is left out if longer logs of the same rank have most of its steps. The list of sentences has at most one
    item.
    """
    covered: dict[int, set[int]] = {}
    counting = []
    for log in sorted(logs, key=lambda log: -len(log.steps)):
        known = covered.setdefault(log.rank, set())
        steps = set(log.steps.tolist())
        if steps and len(steps & known) < _COVERED * len(steps):
            counting.append(log)
            known |= steps
    left_out = [log for log in logs if log not in counting and len(log.steps)]
    kept = [log for log in logs if log in counting]
    names = ", ".join(str(log.artefact.path) for log in left_out[:3])
    return kept, [
        f"{quantity(len(left_out), 'log')} with the same steps as a longer one not used: {names}"
    ] if left_out else []


class UnknownColumn(InputError):
    """Raised if the user named a column, `name`, that no log has."""

    def __init__(self, name: str, known: str) -> None:
        super().__init__(f"--map: no column {name} in these logs", f"columns: {known}")
        self.name = name


def check_map(wanted: ColumnMap, logs: Sequence[MappedLog]) -> None:
    """Check that each column that the user named exists in some log, and has numbers.

    `wanted` has the user's (quantity, column) pairs.

    Raises:
        InputError: A column is missing, or has texts.
    """
    names = {column.name for log in logs for column in log.columns}
    texts = {text for log in logs for text in log.texts}
    for _, name in wanted:
        if name in texts:
            raise InputError(f"--map: the column {name} has no numbers", "choose a column of numbers")
        if name not in names:
            known = (
                ", ".join(sorted(names)[:_COLUMNS_NAMED]) or "none: these logs are of our own or torchtitan's format"
            )
            raise UnknownColumn(name, known)
