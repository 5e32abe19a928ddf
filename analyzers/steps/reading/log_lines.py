"""Define `Line`, one line of a step log of any format, and convert files of such lines to columns."""

import gzip
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.files import decoded_json, open_regular
from analyzers.steps.columns import RawTable

NAMES_AT_MOST = 64
_NAME_LENGTH = 100
"""The most different phases, tags or groups that are kept; a hostile log might have a million."""
LARGEST = 1 << 62
UNKNOWN = -1
"""The value that stands for a rank, a duration or a sequence number that is not recorded."""
ABSENT, FINITE, BROKEN = 0, 1, 2
"""Values of `loss_state`, `local_loss_state` and `grad_norm_state`: not logged, a number, NaN or infinite."""

Arrays = dict[str, Column]
Header = dict[str, Any]


class Line(msgspec.Struct):
    """One step of one rank in a step log, with times in ns and sizes in bytes.

    A process writes a header to the log when it starts; `attempt` is the index of the last header before this line in
    its file. `rank` is set only if one file holds several ranks. `covers` is the number of steps over which the values
    are averaged.
    """

    step: int
    start_ns: int = 0
    dur_ns: int = UNKNOWN
    phases: dict[str, int] = {}
    cpu_ns: dict[str, int] = {}
    device_ns: dict[str, int] = {}
    residual_ns: int = 0
    tokens: int = 0
    loss: float | str | None = None
    local_loss: float | str | None = None
    grad_norm: float | str | None = None
    memory_bytes: int = 0
    reserved_bytes: int = 0
    limit_bytes: int | None = None
    alloc_retries: int = 0
    tags: list[str] = []
    seqs: dict[str, int] = {}
    rank: int = UNKNOWN
    attempt: int = 0
    covers: int = 1


class Content(NamedTuple):
    """The lines of a step log as columns.

    `fixed` has a column for each field that is a single value. `named` is {field: {name: column}} for the fields in
    `NAMED`, which hold several values by name, such as `phases`. `tags` lists the tags of each line (empty if no line
    has one). `numbers` are further columns in the log of another trainer, by name; NaN if a line has no such number.
    """

    fixed: Arrays
    named: dict[str, Arrays]
    tags: list[list[str]]
    numbers: Mapping[str, Column] = MappingProxyType({})


class Log(msgspec.Struct):
    """The content of a log file: a header for each start of the rank, and the steps in the order of writing.

    `torn` says that the last line is truncated; `damaged` counts other lines that are not JSON. `lines` holds the
    steps, unless they are from a log of another trainer (`raw`).
    """

    headers: list[Header]
    lines: list[Line]
    torn: bool = False
    damaged: int = 0
    raw: RawTable | None = None


_INTEGERS = (
    "step", "start_ns", "dur_ns", "residual_ns", "tokens", "memory_bytes", "reserved_bytes", "alloc_retries",
    "rank", "attempt", "covers",
)  # fmt: skip
_NUMBERS = ("loss", "local_loss", "grad_norm")
NAMED = (("phases", "phase", 0), ("cpu_ns", "cpu", 0), ("device_ns", "device", 0), ("seqs", "seq", UNKNOWN))
"""The fields of a line that hold several values by name: (field, prefix of its columns, value for an absent name)."""


class Names:
    """Numbers names in the order of their appearance; at most NAMES_AT_MOST names get a number.

    `texts` has the names in this order, each cut to NAME_LENGTH characters.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int | None:
        if name not in self._numbers and len(self._numbers) < NAMES_AT_MOST:
            self._numbers[name] = len(self._numbers)
            self.texts.append(self._text(name))
        return self._numbers.get(name)

    def _text(self, name: str) -> str:
        text = name[:_NAME_LENGTH].encode("utf-8", "replace").decode()
        ending = f"#{len(self.texts)}"
        return text[: _NAME_LENGTH - len(ending)] + ending if text in self.texts else text


class Table:
    """Builds columns from the lines of several files; only the lines of one file are in memory at a time.

    The columns have a row for each step of each file.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.parts: defaultdict[str, list[tuple[int, Column]]] = defaultdict(list)
        self.names = {"phases": Names(), "seqs": Names(), "tags": Names(), "numbers": Names()}
        self.names["cpu_ns"] = self.names["device_ns"] = self.names["phases"]

    def add(self, file: int, content: Content) -> None:
        """Append the steps of the file with the index `file`."""
        count = len(content.fixed["step"])
        columns = {"file": np.full(count, file), **content.fixed}
        for field, prefix, _ in NAMED:
            for name, column in content.named[field].items():
                if (number := self.names[field](name)) is not None:
                    columns[f"{prefix}.{number}"] = column
        for name, column in content.numbers.items():
            if (number := self.names["numbers"](name)) is not None:
                columns[f"number.{number}"] = column
        columns["tags"] = self.tag_bits(content.tags, count)
        for name, column in columns.items():
            self.parts[name].append((self.rows, column))
        self.rows += count

    def tag_bits(self, tags: Sequence[list[str]], count: int) -> Column:
        """Return the tags of each of `count` lines as an integer with a bit per tag.

        `tags` may be empty if no line has any.
        """
        return np.array([self.bits(of_line) for of_line in tags] or [0] * count, dtype=np.int64)

    def bits(self, tags: Iterable[str]) -> int:
        """Return tags as an integer with a bit per tag; only the first 62 different tags of a table have one."""
        if not tags:
            return 0
        return sum({1 << n for tag in tags if (n := self.names["tags"](tag)) is not None and n < 62})

    def columns(self) -> Arrays:
        """Return the columns over all files; this can be called once, because the collected parts are deleted.

        Rows of a file that does not have a column get the value that `_absent_in` returns.
        """
        columns = {}
        for name in list(self.parts):
            # Filled before the parts are copied in: a file may lack the column altogether.
            whole = np.full(self.rows, _absent_in(name), dtype=self.parts[name][0][1].dtype)
            for begin, part in self.parts.pop(name):
                whole[begin : begin + len(part)] = part
            columns[name] = narrowed(whole) if "." in name or name in SMALL else whole
        return columns

    def meta(self) -> dict[str, Any]:
        """Return the names that explain the columns: item 2 of `phases` is the name of the phase in column `phase.2`.

        In the same way `groups` explains the columns `seq.N`, and `numbers` the columns `number.N`; item N of `tags` is
        the tag of bit N.
        """
        return {name: self.names[field].texts for name, field in _META}


SMALL = ("file", "step", "residual_ns", "tokens", "alloc_retries", "rank", "attempt", "covers", "tags")
"""Columns that may be narrowed to int32, because they are only added to or multiplied with wider ones."""
_META = (("phases", "phases"), ("tags", "tags"), ("groups", "seqs"), ("numbers", "numbers"))


def narrowed(column: Column) -> Column:
    limit = np.iinfo(np.int32)
    fits = len(column) and column.dtype.kind == "i" and limit.min <= column.min() and column.max() <= limit.max
    return column.astype(np.int32) if fits else column


def _absent_in(column: str) -> float:
    if column.startswith("number."):
        return math.nan
    return UNKNOWN if column.startswith("seq.") else 0


def content_of(lines: Sequence[Line]) -> Content:
    fixed = {name: integers([*map(attrgetter(name), lines)]) for name in _INTEGERS}
    for name in _NUMBERS:
        fixed |= numbers(name, [*map(attrgetter(name), lines)])
    named = {field: _by_names([*map(attrgetter(field), lines)], absent) for field, _, absent in NAMED}
    return Content(fixed, named, [line.tags for line in lines])


def _by_names(contents: Sequence[Mapping[str, int]], absent: int) -> Arrays:
    """Return {name: column of its values} for each name that occurs in the mappings, one mapping per row.

    The value is `absent` if a mapping does not have the name.
    """
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(contents)):
        try:
            values = [*map(itemgetter(name), contents)]  # nearly always all lines have the same names
        except KeyError:
            values = [content.get(name, absent) for content in contents]
        columns[name] = integers(values)
    return columns


def numbers(name: str, values: Sequence[Any]) -> Arrays:
    """Return a column `name` of float64 (NaN: no number) and a column `{name}_state` of ABSENT, FINITE or BROKEN."""
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        # Some value is no number, such as the text "NaN": convert one by one.
        column = np.array([number(value) for value in values], dtype=np.float64)
    return {name: column, f"{name}_state": states(values, column)}


def integers(values: list[int]) -> Column:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([max(-LARGEST, min(LARGEST, value)) for value in values], dtype=np.int64)


def number(value: Any) -> float:
    if type(value) is float:  # nearly all are
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def states(values: Sequence[Any], numbers: Column) -> Column:
    """Return, for each value, ABSENT if it is None, FINITE if its number is finite, else BROKEN.

    `numbers` holds the values as floats.
    """
    # Most columns have no None, and need no mask.
    given = np.array([value is not None for value in values], dtype=bool) if None in values else True
    return np.where(given, np.where(np.isfinite(numbers), FINITE, BROKEN), ABSENT).astype(np.int8)


def line_of(row: Mapping[str, Any]) -> Line | None:
    """Return the `Line` in a decoded JSON object, ignoring fields of a wrong type; None if it has no step number."""
    if not is_whole(row.get("step")):
        return None
    kept = {name: value for name, of_type in _FIELD_TYPES.items() if (value := of_type(row.get(name))) is not None}
    return Line(**kept)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _as_int(value: object) -> int | None:
    return value if is_whole(value) else None


def _as_number(value: object) -> float | str | None:
    return value if isinstance(value, (int, float, str)) else None


def _as_ints_by_name(value: object) -> dict[str, int] | None:
    return {str(k): v for k, v in value.items() if is_whole(v)} if isinstance(value, dict) else None


def _as_texts(value: object) -> list[str] | None:
    return [str(item) for item in value] if isinstance(value, list) else None


_FIELD_TYPES: dict[str, Callable[[object], Any]] = {
    **dict.fromkeys((name for name in _INTEGERS if name not in ("rank", "attempt", "covers")), _as_int),
    **dict.fromkeys(_NUMBERS, _as_number),
    **dict.fromkeys((field for field, _, _ in NAMED), _as_ints_by_name),
    "tags": _as_texts,
    "limit_bytes": _as_int,
}


# Read step logs in JSONL: this project's own, and torchtitan's structured log.
#
# A line that is not JSON counts as damaged; the last line counts as truncated instead (`torn`), because a job that
# dies may leave an unfinished line.

SPANS = {
    "fetching_batch": "data_wait",
    "fwd_bwd": "fwd_bwd",
    "optim": "optim",
    "collect_dist_metrics": "loss_sync",
    "gc_collect": "gc",
    "checkpoint_save": "ckpt_save",
    "eval": "eval",
    "kineto_profiler_step_call": "profiler",
    "memory_profiler_step_call": "snapshot",
}
"""{span that torchtitan logs: the corresponding phase in this project's step logs}."""
_TAGS = {"checkpoint_save": "checkpoint"}
_HEADER = ("rank", "local_rank", "world_size", "host", "pid", "attempt", "device", "started_ns")
STARTS_AT_MOST = 1000

Row = dict[str, Any]


def bytes_of(path: Path) -> bytes:
    with open_regular(path) as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else open_regular(path) as stream:
        return stream.read()


def read(path: Path) -> Log:
    """Return the steps of a JSONL file: the step log of this project's recorder, or torchtitan's structured log."""
    texts = bytes_of(path).splitlines()
    return read_structured(texts) if any(b'"log_type_name"' in text for text in texts[:3]) else read_own(texts)


def decoded(text: bytes, log: Log, *, last: bool) -> Row:
    """Return the JSON object in a line; empty if the line holds anything else.

    A line that is no JSON is counted in `log`: as truncated if it is the `last` line, else as damaged.
    """
    try:
        content = decoded_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        log.torn, log.damaged = last, log.damaged + (not last)
        return {}
    return content if isinstance(content, dict) else {}


def read_own(texts: list[bytes]) -> Log:
    """Return the steps in the lines of a log in this project's format.

    The log has a header and then a line per step; a restart writes a new header.
    """
    log = Log([], [])
    decoder = msgspec.json.Decoder(Line)
    for position, text in enumerate(texts, 1):
        try:
            line: Line | None = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            row = decoded(text, log, last=position == len(texts))
            if "schema" in row and len(log.headers) < STARTS_AT_MOST:
                log.headers.append({k: v for k in _HEADER if isinstance(v := row.get(k), (int, str))})
            line = line_of(row)
        if line:
            # A log must not set what the reader adds.
            line.rank, line.attempt, line.covers = -1, max(0, len(log.headers) - 1), 1
            log.lines.append(line)
    return log


def read_structured(texts: list[bytes]) -> Log:
    """Return the steps in the lines of torchtitan's structured log, which has one file per start of a process.

    The record that ends a span carries the span's duration in ms.
    """
    log, steps = Log([], []), dict[int, Line]()
    for position, text in enumerate(texts, 1):
        row = decoded(text, log, last=position == len(texts))
        if row and not log.headers:
            log.headers.append(header_of(row))
        step = row.get("step")
        if isinstance(step, int) and is_whole(step):
            line = steps.setdefault(step, Line(step, start_ns=nanoseconds(row.get("time_us"), 1e3)))
            _take_event(line, row)
    # When the data ends, torchtitan closes the step that found none without having trained: it has no `optim`.
    log.lines = [with_residual(line) for line in steps.values() if line.dur_ns >= 0 and "optim" in line.phases]
    return log


def header_of(row: Row) -> Header:
    """Return the process information in a record of torchtitan's log, with the names of this project's log header."""
    fields = {
        "rank": row.get("global_rank", row.get("rank")),
        "local_rank": row.get("local_rank"),
        "host": row.get("host_name"),
        "pid": row.get("pid"),
        "started_ns": nanoseconds(row.get("time_us"), 1e3),
    }
    return {name: value for name, value in fields.items() if isinstance(value, (int, str))}


def _take_event(line: Line, row: Row) -> None:
    """Add the duration or the metric in one record of torchtitan's log to `line`, the `Line` of the record's step."""
    event, value = str(row.get("log_type_name", "")), row.get("value")
    name = event.removesuffix("_end")
    if event == "metric_value":
        take_metric(line, str(row.get("event_name")), value)
    elif event == "step_end":
        tags = row.get("step_tags")
        line.dur_ns = nanoseconds(value, 1e6)
        line.tags = [_TAGS.get(str(tag), str(tag)) for tag in tags] if isinstance(tags, list) else []
    elif event.endswith("_end") and name in SPANS:
        line.phases[SPANS[name]] = line.phases.get(SPANS[name], 0) + nanoseconds(value, 1e6)


def take_metric(line: Line, name: str, value: object) -> None:
    """Store the value of one metric of torchtitan's log in `line`: tokens, loss or gradient norm.

    Metrics with other names are ignored.
    """
    if name == "local_valid_tokens":
        line.tokens = nanoseconds(value, 1)
    elif name in ("loss", "grad_norm"):
        setattr(line, name, number(value))


def with_residual(line: Line) -> Line:
    line.residual_ns = line.dur_ns - sum(line.phases.values())
    return line


def nanoseconds(value: object, unit: float) -> int:
    ns = number(value) * unit
    return round(ns) if math.isfinite(ns) and abs(ns) < 4e18 else 0
