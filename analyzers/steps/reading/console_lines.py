"""Read the numbers in one console line of any trainer: dicts, progress bars, `name: value`, `name value`.

For example `iter 100: loss 2.5371, time 115.20ms` (nanoGPT), `iteration 859/ 2000 | lm loss: 2.6E+00 |` (Megatron-LM),
`{'loss': 3.55, 'epoch': 0.01}` (Hugging Face), `step=10, lr=[1e-05]` (DeepSpeed). Names stay as they are printed; a
unit after a value becomes part of its name (`time (ms)`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from analyzers.steps.columns import SIZE_UNITS, TIME_UNITS, Quantity, meaning_of
from analyzers.steps.reading.json_table import number_of

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
        """Return whether the line contains a step number."""
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
    printed.values = dict(text_pairs(match["after"]))
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
    printed.values = dict(text_pairs(text))
    for name in [name for name in printed.values if (m := meaning_of(name)) and m.quantity is Quantity.EPOCH]:
        value = printed.values[name]
        printed.epoch = int(value) if 0 <= value < 1e9 else None


def text_pairs(text: str) -> Iterator[tuple[str, float]]:
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
    """Return a name with the unit that follows its value, such as `time (ms)`, if this is a unit of time or memory."""
    known = unit and (unit.lower() in TIME_UNITS or unit.lower() in SIZE_UNITS)
    return f"{name} ({unit})" if known else name


def counters(printed: Printed) -> Mapping[str, float]:
    """Return the `rank` and the `timestamp` of a console line as numbers by name, if the line shows them."""
    named = {"rank": printed.rank, "timestamp": printed.clock}
    return {name: float(value) for name, value in named.items() if value is not None}
