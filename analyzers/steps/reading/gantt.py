"""Read the Gantt chart that torchtitan makes of its structured logs: a file in the Chrome trace format.

It has a process for each structured log, a bar for each span, and a mark for each metric, such as `loss=2.5000`.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from analyzers.errors import InputError
from analyzers.steps.reading.jsonl import SPANS, content_of, nanoseconds, take_metric, with_residual
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log, is_whole

RANK = re.compile(r"\bglobal_rank_(\d{1,6})(?=\.)")
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


def read(path: Path) -> Log:
    """Return the steps of all ranks in a chart; a step that did not end, or did not train, is left out.

    Raises:
        InputError: The file is truncated or is no such chart.
    """
    try:
        events = msgspec.json.decode(content_of(path), type=Chart).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("the Gantt chart is damaged", _WHOLE_FILE) from error
    ranks, attempts = processes(events)
    steps: dict[tuple[int, int], Line] = {}
    for event in events:
        step = event.args.get("step")
        if is_whole(step) and event.ph in ("X", "i") and event.pid in ranks:
            start = Line(step, rank=ranks[event.pid], attempt=attempts[event.pid])
            take(steps.setdefault((event.pid, step), start), event)
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
            named = RANK.search(str(event.args.get("name")))
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


def take(line: Line, event: Event) -> None:
    """Add a bar or a mark of the chart to `line`, the `Line` of its step."""
    if event.ph == "i":
        name, _, value = event.name.partition("=")
        take_metric(line, name, value)
    elif event.name == "step":
        line.start_ns, line.dur_ns = nanoseconds(event.ts, 1e3), nanoseconds(event.dur, 1e3)
    elif event.name in SPANS:
        line.phases[SPANS[event.name]] = line.phases.get(SPANS[event.name], 0) + nanoseconds(event.dur, 1e3)
