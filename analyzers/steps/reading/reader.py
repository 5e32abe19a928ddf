"""Convert step logs to columns: the reader that `analyzers.store` runs in a child process.

Rows are in the order in which they were written, one per rank and step. One child reads several files in turn,
because starting a child for each of thousands of small logs would take too long.
"""

import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from analyzers import kinds
from analyzers.errors import InputError
from analyzers.steps.reading import console_table, log_lines, tables, tensorboard
from analyzers.steps.reading.log_lines import (
    SPANS,
    UNKNOWN,
    Arrays,
    Line,
    Log,
    Table,
    bytes_of,
    content_of,
    is_whole,
    nanoseconds,
    take_metric,
    with_residual,
)
from analyzers.store import code_version

LONGEST_LINE = 4096
"""The most bytes of a line that is parsed; on a longer, hostile line a regular expression could take very long."""
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
STEP = re.compile(r"(?<!validate )\bstep:\s+(\d{1,15})\b")
_PAIR = re.compile(r"\b(loss|grad_norm|memory|tps|wps):\s+([-+\w.,]+)")
RANK = re.compile(r"^\[(?:rank|default)(\d{1,5})\]:")
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d{3})")
UNITS = re.compile(r"(GiB|MiB)$")


def read_console(path: Path) -> Log:
    """Return the steps that torchtitan printed in a console log; all other lines are skipped."""
    values: defaultdict[int, dict[int, tensorboard.Values]] = defaultdict(dict)
    times: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for raw in bytes_of(path).splitlines():
        # Looking for bytes is far cheaper than a regular expression on each line of a long console log.
        if len(raw) > LONGEST_LINE or b"step:" not in raw or b"loss:" not in raw:
            continue
        text = COLOURS.sub(b"", raw).decode("utf-8", "replace")
        if match := STEP.search(text):
            rank, step = rank_in(text), int(match[1])
            values[rank][step] = numbers_in(text[match.end() :])
            times[rank].setdefault(step, time_in(text))
    return Log([], [line for rank in sorted(values) for line in lines_of(rank, values[rank], times[rank])])


def rank_in(text: str) -> int:
    """Return the rank that torchrun prints before a line if several ranks share an output; UNKNOWN without one."""
    match = RANK.match(text)
    return int(match[1]) if match else UNKNOWN


def lines_of(rank: int, values: dict[int, tensorboard.Values], times: dict[int, float]) -> list[Line]:
    """Return a `Line` for each step of one rank, in order; a step's duration is the time since the previous step.

    `values` is {step: the printed numbers}, `times` {step: the time of printing in seconds}.
    """
    lines = [tensorboard.line_of(step, values[step]) for step in sorted(values)]
    tensorboard.set_times(lines, times)
    for line in lines:
        line.rank = rank
        tensorboard.set_tokens(line, values[line.step])
    return lines


def numbers_in(text: str) -> tensorboard.Values:
    """Return the numbers in a printed line by their names, such as `loss` or `memory` (in GiB)."""
    return {name: amount(value) for name, value in _PAIR.findall(text)}


def amount(text: str) -> float:
    """Return a printed value as a number, without its commas and unit, memory in GiB; NaN if it is no number."""
    try:
        return float(UNITS.sub("", text).replace(",", "")) / (1024 if text.endswith("MiB") else 1)
    except ValueError:
        return math.nan


def time_in(text: str) -> float:
    """Return the time that the logger printed in a line, in seconds; NaN if the line has none.

    The time zone is unknown, so only differences are meaningful.
    """
    match = TIME.search(text)
    if not match:
        return math.nan
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() + int(match[2]) / 1000
    except ValueError:
        return math.nan


_GLOBAL_RANK = re.compile(r"\bglobal_rank_(\d{1,6})(?=\.)")
"""Matches the rank in the name of a process of the chart, which is the file name of its structured log."""
_COLLECTION_NS = 1_000_000
"""A shorter `gc` span, in ns, collected no garbage: the span is logged in every step."""
_WHOLE_FILE = "make it again from the structured logs, or read these: workbench inspect structured_logs"


class Event(msgspec.Struct):
    """An event of the chart: a bar ("X"), a mark ("i") or the name of a process ("M"), with times in microseconds."""

    ph: str = ""
    name: str = ""
    pid: int = 0
    ts: float = 0
    dur: float = 0
    args: dict[str, Any] = {}


class Chart(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815 - the key in the file


def _read_gantt(path: Path) -> Log:
    """Return the steps of all ranks in a chart; a step that did not end, or did not train, is left out.

    Raises:
        InputError: The file is truncated or is no such chart.
    """
    try:
        events = msgspec.json.decode(bytes_of(path), type=Chart).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("the Gantt chart is damaged", _WHOLE_FILE) from error
    ranks, attempts = processes(events)
    steps: dict[tuple[int, int], Line] = {}
    for event in events:
        step = event.args.get("step")
        if is_whole(step) and event.ph in ("X", "i") and event.pid in ranks:
            start = Line(step, rank=ranks[event.pid], attempt=attempts[event.pid])
            _take_event(steps.setdefault((event.pid, step), start), event)
    # When the data end, torchtitan closes a step that has not trained: it has no `optim`.
    lines = [with_residual(line) for line in steps.values() if line.dur_ns >= 0 and "optim" in line.phases]
    for line in lines:
        line.tags = _tags_of(line)
    return Log([], lines)


def processes(events: list[Event]) -> tuple[dict[int, int], dict[int, int]]:
    """Return {process: rank} and {process: number of earlier processes of its rank}."""
    ranks: dict[int, int] = {}
    attempts: dict[int, int] = {}
    of_rank: defaultdict[int, int] = defaultdict(int)
    for event in events:
        if event.ph == "M" and event.name == "process_name" and event.pid not in ranks:
            named = _GLOBAL_RANK.search(str(event.args.get("name")))
            rank = int(named[1]) if named else UNKNOWN
            ranks[event.pid], attempts[event.pid] = rank, of_rank[rank]
            of_rank[rank] += 1
    return ranks, attempts


def _tags_of(line: Line) -> list[str]:
    """Return the tags of a step (gc, eval, checkpoint), which are not recorded in the chart.

    A step gets a tag if it has the phase that does this work; for gc the phase must also be long enough for a real
    collection.
    """
    # torchtitan times the call in each step, also where it collects nothing: that takes some microseconds.
    done = {"gc": line.phases.get("gc", 0) >= _COLLECTION_NS, "eval": "eval" in line.phases}
    return [tag for tag, is_done in (*done.items(), ("checkpoint", "ckpt_save" in line.phases)) if is_done]


def _take_event(line: Line, event: Event) -> None:
    """Add a bar or a mark of the chart to `line`, the `Line` of its step."""
    if event.ph == "i":
        name, _, value = event.name.partition("=")
        take_metric(line, name, value)
    elif event.name == "step":
        line.start_ns, line.dur_ns = nanoseconds(event.ts, 1e3), nanoseconds(event.dur, 1e3)
    elif event.name in SPANS:
        line.phases[SPANS[event.name]] = line.phases.get(SPANS[event.name], 0) + nanoseconds(event.dur, 1e3)


VERSION = code_version(Path(__file__).parents[1])
CUT = "check that the file was copied whole"


def _read_console(path: Path) -> Log:
    """Return the steps that torchtitan or this project's trainer printed, else another trainer's rows."""
    log = read_console(path)
    return log if log.lines else Log([], [], raw=console_table.read(path))


def _read_metrics(path: Path) -> Log:
    is_json = kinds.head_of(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))
    return Log([], [], raw=tables.read_json(path) if is_json else tables.read_separated(path))


_READERS = {
    kinds.Kind.TENSORBOARD: tensorboard.read_torchtitan_metrics,
    kinds.Kind.GANTT: _read_gantt,
    kinds.Kind.LOG: _read_console,
    kinds.Kind.METRICS: _read_metrics,
}
"""{kind of file: function that reads it}; files of all other kinds are JSONL."""


def read(paths: list[Path]) -> tuple[Arrays, dict[str, Any]]:
    """Return the columns and the metadata of the logs at `paths`.

    Columns: `file` is the index into `paths`, `attempt` the index of the file's header; `phase.I`, `cpu.I` and
    `device.I` are the ns of phase `meta.phases[I]`; `tags` has a bit per tag of `meta.tags`; `seq.I` is the sequence
    number of the last collective of process group `meta.groups[I]` (-1: unknown); `dur_ns` is -1 if it is not recorded.
    `meta.files` has for each file its headers, whether it is truncated (`torn`), the number of its damaged lines, or
    the problem that made it unreadable. A log of another trainer has no rows in these columns. It has columns of its
    own: `rawF.I` holds the values of column `meta.files[F].raw.names[I]` of file F.
    """
    table = Table()
    files: list[dict[str, Any]] = []
    raw: Arrays = {}
    for number, path in enumerate(paths):
        try:
            log = _read_one(path)
        except (OSError, EOFError, InputError) as error:
            table.add(number, content_of([]))
            hint = error.hint if isinstance(error, InputError) else CUT
            files.append({"headers": [], "problem": str(error), "hint": hint})
            continue
        table.add(number, content_of(log.lines))
        if log.raw is None:
            files.append({"headers": log.headers, "torn": log.torn, "damaged": log.damaged})
        else:
            columns, file = log.raw.stored(number)
            raw |= columns
            files.append(file)
    return table.columns() | raw, table.meta() | {"files": files}


def _read_one(path: Path) -> Log:
    kind = kinds.kind_of(path, alone=True)
    return _READERS.get(kind, log_lines.read)(path) if kind else log_lines.read(path)
