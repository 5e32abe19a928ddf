"""Read the console output of a trainer into rows.

The lines of one step are merged, and missing step numbers are taken from progress bars. Hugging Face's Trainer prints
dicts without a step. The step is in the progress bar before the dict (but tqdm may not have drawn the newest count yet)
or after the dict (tqdm draws again after each print). The epoch, which grows evenly with the step, shows which of the
two counts is right.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analyzers.columns import Floats
from analyzers.steps.columns import Quantity, RawTable, RowCollector, meaning_of
from analyzers.steps.reading.console_lines import LONGEST_LINE, Printed, counters, parsed, text_pairs
from analyzers.steps.reading.jsonl import content_of

COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_LINE_END = re.compile(rb"[\r\n]+")
_INTERESTING = re.compile(
    rb"loss|step|iter|it/s|s/it|epoch|batch|num_updates|learning.rate|\blr\b|grad.norm|\[metric\]", re.IGNORECASE
)
"""Matches words, at least one of which is in every line about a step; this is far cheaper than parsing the line."""
_STEP_NAME, _TOTAL_NAME, _EPOCH_NAME = "step", "total steps", "epoch"


def read(path: Path) -> RawTable:
    """Return the rows of a console log as a table."""
    collector = ConsoleRows()
    for text in lines_of(content_of(path)):
        collector.take(text)
    return collector.table()


def lines_of(content: bytes) -> Iterator[bytes]:
    """Yield the lines of a log that are neither empty nor overlong.

    A carriage return ends a line too, as progress bars use it.
    """
    at = 0
    for match in _LINE_END.finditer(content):
        if 0 < match.start() - at <= LONGEST_LINE:
            yield content[at : match.start()]
        at = match.end()
    if 0 < len(content) - at <= LONGEST_LINE:
        yield content[at:]


class ConsoleRows:
    """Builds a table from the lines of a console log, which are given to `take` one after the other."""

    def __init__(self) -> None:
        self._rows = RowCollector()
        self._open: Printed | None = None
        self._step_known: list[bool] = []
        self._bar_before: list[float] = []
        self._bar_after: list[float] = []
        self._bar: float = np.nan
        self._bar_total: int | None = None
        self._last_bar: tuple[int | None, int | None] = (None, None)

    def take(self, raw: bytes) -> None:
        """Process one line of the console output.

        It may begin, continue or end the numbers of a step; other lines are skipped.
        """
        indented = self._open is not None and raw[:1] in (b" ", b"\t")
        if not indented and not _INTERESTING.search(raw):
            return
        text = COLOURS.sub(b"", raw).decode("utf-8", "replace")
        if indented and self._open is not None:
            self._open.values.update(text_pairs(text))
            return
        printed = parsed(text)
        if printed.bar:
            self._take_bar(printed)
            return
        self._close()
        if printed.opens:
            self._open = printed
        elif printed.has_training_number() or printed.is_dict:
            self._add(printed)

    def _take_bar(self, printed: Printed) -> None:
        """Process a progress bar: its count gives the step of the rows that are printed just before and after it.

        Only a bar without text before it is used for this. A bar that moved and shows training numbers also becomes a
        row.
        """
        if printed.plain_bar and (self._bar_total in (None, printed.total)):
            self._bar, self._bar_total = float(printed.step or 0), printed.total
            # The first bar after a row counts.
            for row in range(len(self._bar_after) - 1, -1, -1):
                if not np.isnan(self._bar_after[row]):
                    break
                self._bar_after[row] = self._bar
        now = (printed.epoch, printed.step)
        if printed.has_training_number() and now != self._last_bar and printed.step:
            self._last_bar = now
            self._add(printed)

    def _close(self) -> None:
        """Add the row whose numbers were printed on indented lines, if there is one."""
        printed, self._open = self._open, None
        if printed and printed.has_training_number():
            self._add(printed)

    def _add(self, printed: Printed) -> None:
        """Append the numbers of a printed line as a row."""
        row = dict(counters(printed)) | printed.values
        if printed.step is not None and not _names_step(printed.values):
            row[_STEP_NAME] = printed.step
        if printed.total is not None:
            row[_TOTAL_NAME] = printed.total
        if printed.epoch is not None and not any(_is_a(name, Quantity.EPOCH) for name in row):
            row[_EPOCH_NAME] = printed.epoch
        self._step_known.append(printed.has_step())
        self._bar_before.append(self._bar)
        self._bar_after.append(np.nan)
        self._rows.add(row)

    def table(self) -> RawTable:
        """Return the rows as a table.

        Steps that only a progress bar shows are filled in, and step numbers that begin again in each epoch are made
        continuous.
        """
        self._close()
        table = self._rows.table()
        if not len(table):
            return table
        known = np.array(self._step_known, dtype=bool)
        if not known.all():
            _add_steps_of_bar(table, known, np.array(self._bar_before), np.array(self._bar_after))
        _count_over_epochs(table)
        table.columns.pop(_TOTAL_NAME, None)
        return table


def _names_step(values: dict[str, float]) -> bool:
    """Return whether the name of one of the values shows that it is the step number."""
    return any(_is_a(name, Quantity.STEP) for name in values)


def _is_a(name: str, quantity: Quantity) -> bool:
    """Return whether the name of a column stands for this quantity."""
    meaning = meaning_of(name)
    return meaning is not None and meaning.quantity is quantity


def _column_of(table: RawTable, quantity: Quantity) -> Floats:
    """Return the values of the first column of a table that stands for a quantity; all NaN if there is none."""
    names = [name for name in table.columns if _is_a(name, quantity)]
    return table.columns[names[0]] if names else np.full(len(table), np.nan)


def _add_steps_of_bar(table: RawTable, known: "np.ndarray", before: Floats, after: Floats) -> None:
    """Fill in the missing step numbers of a table's rows, in place, from the progress bars printed around them.

    Rows without a loss get the step of the last row that has a loss. `known` is a mask of the rows with a step number;
    `before` and `after` have, for each row, the step count of the progress bar printed before and after it (NaN: none).
    """
    trained = ~np.isnan(_column_of(table, Quantity.LOSS)) & ~known
    if not trained.any() or (np.isnan(before[trained]).all() and np.isnan(after[trained]).all()):
        return
    steps = np.full(len(table), np.nan)
    steps[trained] = chosen_counts(before[trained], after[trained], _column_of(table, Quantity.EPOCH)[trained])
    last = np.maximum.accumulate(np.where(trained, np.arange(len(table)), -1))
    steps = np.where(last >= 0, steps[last], np.nan)
    existing = table.columns.get(_STEP_NAME, np.full(len(table), np.nan))
    table.columns[_STEP_NAME] = np.where(known, existing, steps)


@np.errstate(over="ignore")  # a damaged log may have an epoch of 1e-310
def chosen_counts(before: Floats, after: Floats, epochs: Floats) -> Floats:
    """Return, for each row, the step count of the progress bar before or after it, whichever fits the epoch better.

    Example: epochs 0.25, 0.5, 0.75 with counts (before, after) of (4, 5), (10, 10), (14, 15). The counts after each row
    are always 20 per epoch; the counts before vary from 16 to 20 per epoch. So the rate is 20 per epoch, and the counts
    nearest to it are 5, 10, 15.
    """
    usable = np.isfinite(epochs) & (epochs > 0)
    rates = []
    for counts in (after, before):
        rows = usable & np.isfinite(counts) & (counts > 0)
        ratio = counts[rows] / epochs[rows]
        ratio = ratio[np.isfinite(ratio)]
        if len(ratio):
            middle = float(np.median(ratio))
            rates.append((float(np.median(np.abs(ratio - middle))) / middle, middle))
    if not rates:
        return np.where(np.isfinite(after), after, before)
    expected = min(rates)[1] * epochs
    after_fits = np.abs(after - expected) <= np.abs(before - expected)
    return np.where(np.isfinite(after) & (after_fits | ~np.isfinite(before)), after, before)


def _count_over_epochs(table: RawTable) -> None:
    """Make the step column continuous, in place, if step numbers begin again in each epoch."""
    total, epoch = table.columns.get(_TOTAL_NAME), _column_of(table, Quantity.EPOCH)
    names = [name for name in table.columns if _is_a(name, Quantity.STEP)]
    if total is None or len(names) != 1:
        return
    step = table.columns[names[0]]
    rows = np.flatnonzero(np.isfinite(step) & np.isfinite(epoch) & np.isfinite(total))
    back = (np.diff(step[rows]) < 0) & (np.diff(epoch[rows]) >= 1)
    if back.any():
        first = epoch[rows].min()
        step[rows] += (epoch[rows] - first) * total[rows]
