"""Read step logs in JSONL: this project's own, and torchtitan's structured log.

A line that is not JSON counts as damaged; the last line counts as truncated instead (`torn`), because a job that dies
may leave an unfinished line.
"""

import gzip
import math
from pathlib import Path
from typing import Any

import msgspec

from analyzers.files import open_regular
from analyzers.steps.reading.log_lines import Header, Line, Log, is_whole, line_of, number

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


def content_of(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzipped."""
    with open_regular(path) as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else open_regular(path) as stream:
        return stream.read()


def read(path: Path) -> Log:
    """Return the steps of a JSONL file: the step log of this project's recorder, or torchtitan's structured log."""
    texts = content_of(path).splitlines()
    return read_structured(texts) if any(b'"log_type_name"' in text for text in texts[:3]) else read_own(texts)


def _header_fields(row: Row) -> Header:
    return {k: v for k in _HEADER if isinstance(v := row.get(k), (int, str))}


def decoded(text: bytes, log: Log, *, last: bool) -> Row:
    """Return the JSON object in a line; empty if the line holds anything else.

    A line that is no JSON is counted in `log`: as truncated if it is the `last` line, else as damaged.
    """
    try:
        content = msgspec.json.decode(text)
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
                log.headers.append(_header_fields(row))
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
