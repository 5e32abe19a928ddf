"""Read the console output of a trainer into rows.

The lines of one step are merged, and missing step numbers are taken from progress bars. Hugging Face's Trainer prints
dicts without a step. The step is in the progress bar before the dict (but tqdm may not have drawn the newest count yet)
or after the dict (tqdm draws again after each print). The epoch, which grows evenly with the step, shows which of the
two counts is right.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from analyzers.columns import Floats
from analyzers.steps.columns import SIZE_UNITS, TIME_UNITS, Quantity, RawTable, RowCollector, meaning_of
from analyzers.steps.reading.log_lines import bytes_of
from analyzers.steps.reading.tables import number_of

LONGEST_LINE = 16384
"""The most characters of a line that is parsed; on a longer, hostile line a regular expression could take very long."""
NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan\b|inf(?:inity)?\b)"
)
UNIT = r"(?:\s?(ns|us|ms|sec|s|GiB|MiB|KiB|GB|MB|KB|B|M|G)\b(?![/\w]))?"
_NOT_A_TIME = r"(?![\d.]*\d|:\S|-\d)"
"""A pattern that rejects a number which is part of a date, a time, or a line number in a source file."""
WORD = r"[A-Za-z_@][\w/.@%#-]{0,120}"
_MORE_WORDS = r"(?: [A-Za-z(\[][\w/.%()\[\]-]{0,60}){0,5}"
_PAIR = re.compile(
    rf"(?<![\w.])({WORD}{_MORE_WORDS})\s{{0,20}}[:=]\s{{0,20}}[\[(\"'~]{{0,3}}\s{{0,9}}({NUMBER}){UNIT}{_NOT_A_TIME}",
    re.IGNORECASE,
)
NAMED = (
    r"(?:global |train |training )?steps?|iter(?:ation)?|epoch|batch|"
    r"(?:train |val |valid |validation |test |eval |lm )?loss|lr|learning rate|(?:grad )?norm|time|data|dt"
)
_SPACED = re.compile(rf"(?<![\w/.-])({NAMED})\s+({NUMBER}){UNIT}{_NOT_A_TIME}", re.IGNORECASE)
"""Matches a known name that is followed by its value, with only blanks between them."""
_BARE = re.compile(rf"\|\s*({NUMBER})\s*(ms|s|tok/s|tokens/s|it/s)\s*(?=\||$)")
"""Matches a number between bars that has no name, only a unit."""
_BARE_NAMES = {"ms": "step time (ms)", "s": "step time (s)", "tok/s": "tok/s", "tokens/s": "tokens/s", "it/s": "it/s"}
_QUOTED = re.compile(r"['\"]([^'\"{}]{1,200})['\"]\s*:\s*\[?(?:['\"]([^'\"]{0,60})['\"]|([^\s,}\]\['\"]{1,60}))")
_PROGRESS = re.compile(
    r"\[\s*(\d{1,15})\s*/\s*(\d{1,15})\s*(?:\]|\()"
    r"|\b(?:steps?|iter(?:ation)?|batch)\s*[:=]?\s*\[?\s*(\d{1,15})\s*/\s*(\d{1,15})\b(?=\s*[\](,|:\s]|$)",
    re.IGNORECASE,
)
_TUTORIAL = re.compile(r"^\s*\[(\d{1,9}),\s+(\d{1,15})\]\s")
"""Matches the counters that PyTorch's tutorials print: `[epoch, batch] loss: 2.1`."""
_HEADER = re.compile(
    r"\[(?:epoch=(\d{1,9})\]\[)?(step|batch|iter)=(\d{1,15})(?:/(\d{1,15}))?(?:,epoch=(\d{1,9}))?\]", re.IGNORECASE
)
"""Matches the step in brackets that Composer and OLMo print; their numbers follow, each on an indented line."""
_BAR = re.compile(
    r"(?P<before>[^|%]{0,200}?)(?P<percent>\d{1,3})%\|[^|]{0,400}\|\s*(?P<n>\d{1,15})/(?P<total>\d{1,15}|\?)\s*"
    r"\[[\d:]+<[^,\]]{1,20},\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>s/it|it/s|s/\w+|\w+/s)(?P<after>[^\]]*)\]"
)
_RICH_BAR = re.compile(
    "(?P<before>.{0,100}?)\\s[━╸╺ ]{5,200}\\s(?P<n>\\d{1,15})/(?P<total>\\d{1,15})\\s"
    ".{0,60}?(?P<rate>[\\d.]+)(?P<unit>it/s)(?P<after>.*)"
)
_EPOCH_BEFORE = re.compile(r"\bepoch[: ]*(\d{1,9})", re.IGNORECASE)
_NO_TRAINING = re.compile(r"\b(?:valid|validation|evaluat\w*|eval|val|testing|test|sanity|predict\w*)\b", re.IGNORECASE)
RANK = re.compile(r"^\s*(?:\[(?:rank|default)(\d{1,6})\]:|(\d{1,6}):\s(?=\s*[\[{A-Za-z]))")
TIME = re.compile(r"\b(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_FILE_NAME = re.compile(r"\.(?:py|cpp|cc|h|cu)$", re.IGNORECASE)


@dataclass
class Printed:
    """The content of one console line: numbers by name, and the step and epoch of a progress display.

    `bar` says that the line is a progress bar, `plain_bar` that there is no text before the bar. `opens` says that
    further numbers of the same step follow on indented lines, and `is_dict` that the numbers were printed as a dict.
    """

    values: dict[str, float] = field(default_factory=dict)
    rank: int | None = None
    clock: float | None = None
    step: int | None = None
    total: int | None = None
    epoch: int | None = None
    bar: bool = False
    plain_bar: bool = False
    opens: bool = False
    is_dict: bool = False

    def has_training_number(self) -> bool:
        """Return whether the line has a number about training, such as a loss, besides counters such as the step."""
        counters = (None, Quantity.STEP, Quantity.EPOCH, Quantity.RANK, Quantity.CLOCK)
        return any((meaning := meaning_of(name)) and meaning.quantity not in counters for name in self.values)

    def has_step(self) -> bool:
        names = (meaning_of(name) for name in self.values)
        return self.step is not None or any(meaning and meaning.quantity is Quantity.STEP for meaning in names)


def parsed(text: str) -> Printed:
    """Return the content of one console line; colour codes must have been removed from `text`."""
    printed = Printed()
    if match := RANK.match(text):
        printed.rank = int(match[1] or match[2])
        text = text[match.end() :]
    printed.clock = _clock_in(text)
    if "%|" in text or "━" in text:
        _take_bar(printed, text)
    elif "{" in text and (pairs := dict(_quoted_pairs(text))):
        printed.values, printed.is_dict = pairs, len(pairs) > 1
    else:
        _take_text(printed, text)
    return printed


def _clock_in(text: str) -> float | None:
    """Return the date and time that a logger printed in a line, in seconds; None if the line has none.

    The time zone is unknown, so only differences are meaningful.
    """
    match = TIME.search(text)
    if not match:
        return None
    try:
        moment = datetime(*map(int, match.groups()[:6]), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    return moment.timestamp() + float("0." + (match[7] or "0"))


def _quoted_pairs(text: str) -> Iterator[tuple[str, float]]:
    """Yield the (name, number) pairs of a dict or JSON object in a line, ignoring the text before it."""
    for name, quoted, bare in _QUOTED.findall(text[text.find("{") :]):
        number = number_of((quoted or bare).strip())
        if number is not None:
            yield name, number


def _take_bar(printed: Printed, text: str) -> None:
    """Add the content of a progress bar (tqdm or rich) to `printed`: step, time per step, and the numbers after it."""
    match = _BAR.search(text) or _RICH_BAR.search(text)
    if not match or match["total"] == "?" or _NO_TRAINING.search(match["before"]):
        return
    printed.bar, printed.step, printed.total = True, int(match["n"]), int(match["total"])
    printed.plain_bar = not match["before"].strip()
    if epoch := _EPOCH_BEFORE.search(match["before"]):
        printed.epoch = int(epoch[1])
    printed.values = dict(_text_pairs(match["after"]))
    if printed.values and (rate := number_of(match["rate"])) and match["unit"] in ("s/it", "it/s"):
        printed.values["time per iteration (s)"] = rate if match["unit"] == "s/it" else 1 / rate


def _take_text(printed: Printed, text: str) -> None:
    """Add the content of a line without a progress bar to `printed`: counters such as `[10/500]`, and named values."""
    if match := _HEADER.search(text):
        printed.step, printed.opens = int(match[3]), text[match.end() :].strip() in ("", ":")
        printed.total = int(match[4]) if match[4] else None
        printed.epoch = int(match[1] or match[5]) if match[1] or match[5] else None
        text = text[match.end() :]
    elif match := _TUTORIAL.match(text):
        printed.epoch, printed.step = int(match[1]), int(match[2])
    elif match := _PROGRESS.search(text):
        printed.step, printed.total = int(match[1] or match[3]), int(match[2] or match[4])
    printed.values = dict(_text_pairs(text))
    for name in [name for name in printed.values if (m := meaning_of(name)) and m.quantity is Quantity.EPOCH]:
        value = printed.values[name]
        printed.epoch = int(value) if 0 <= value < 1e9 else None


def _text_pairs(text: str) -> Iterator[tuple[str, float]]:
    """Yield the (name, number) pairs in a console line, such as ("loss", 2.5) for `INFO step loss: 2.5`.

    `_short_name` removes the words before a name that do not belong to it.
    """
    seen = set()
    for pattern in (_PAIR, _SPACED):
        for match in pattern.finditer(text):
            name, number = _short_name(match[1]), number_of(match[2].replace(",", ""))
            if number is None or name in seen or _FILE_NAME.search(name):
                continue
            seen.add(name)
            yield _with_unit(name, match[3]), number
    for value, unit in _BARE.findall(text):
        if (number := number_of(value.replace(",", ""))) is not None:
            yield _BARE_NAMES[unit], number


def _short_name(name: str) -> str:
    """Return the name of a number, given all words that are printed before the number: `step` for `INFO step`.

    Leading words are removed until the rest is a known quantity, such as `loss` or `lm loss`. If no rest is known, the
    result is all words, or only the last one if there are more than four.
    """
    words = name.split(" ")
    ends = (" ".join(words[begin:]) for begin in range(len(words)))
    return next((end for end in ends if meaning_of(end)), words[-1] if len(words) > 4 else name)


def _with_unit(name: str, unit: str | None) -> str:
    known = unit and (unit.lower() in TIME_UNITS or unit.lower() in SIZE_UNITS)
    return f"{name} ({unit})" if known else name


def counters(printed: Printed) -> Mapping[str, float]:
    """Return the `rank` and the `timestamp` of a console line as numbers by name, if the line shows them."""
    named = {"rank": printed.rank, "timestamp": printed.clock}
    return {name: float(value) for name, value in named.items() if value is not None}


COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_LINE_END = re.compile(rb"[\r\n]+")
_INTERESTING = re.compile(
    rb"loss|step|iter|it/s|s/it|epoch|batch|num_updates|learning.rate|\blr\b|grad.norm|\[metric\]", re.IGNORECASE
)
"""Matches words, at least one of which is in every line about a step; this is far cheaper than parsing the line."""
_STEP_NAME, _TOTAL_NAME, _EPOCH_NAME = "step", "total steps", "epoch"


def read(path: Path) -> RawTable:
    collector = ConsoleRows()
    for text in lines_of(bytes_of(path)):
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
            self._open.values.update(_text_pairs(text))
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
        printed, self._open = self._open, None
        if printed and printed.has_training_number():
            self._add(printed)

    def _add(self, printed: Printed) -> None:
        row = dict(counters(printed)) | printed.values
        if printed.step is not None and not any(_is_a(name, Quantity.STEP) for name in printed.values):
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


def _is_a(name: str, quantity: Quantity) -> bool:
    meaning = meaning_of(name)
    return meaning is not None and meaning.quantity is quantity


def _column_of(table: RawTable, quantity: Quantity) -> Floats:
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
    steps[trained] = _chosen_counts(before[trained], after[trained], _column_of(table, Quantity.EPOCH)[trained])
    last = np.maximum.accumulate(np.where(trained, np.arange(len(table)), -1))
    steps = np.where(last >= 0, steps[last], np.nan)
    existing = table.columns.get(_STEP_NAME, np.full(len(table), np.nan))
    table.columns[_STEP_NAME] = np.where(known, existing, steps)


@np.errstate(over="ignore")  # a damaged log may have an epoch of 1e-310
def _chosen_counts(before: Floats, after: Floats, epochs: Floats) -> Floats:
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
