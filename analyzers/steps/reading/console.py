"""torchtitan's lines on the console, with or without colours, of one rank or of several in one file."""

import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from analyzers.steps.reading import torchtitan_metrics
from analyzers.steps.reading.jsonl import content_of
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log

LONGEST = 4096
"""What a line that tells of a step is shorter than."""
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
STEP = re.compile(r"(?<!validate )\bstep:\s+(\d{1,15})\b")
PAIR = re.compile(r"\b(loss|grad_norm|memory|tps|wps):\s+([-+\w.,]+)")
RANK = re.compile(r"^\[(?:rank|default)(\d{1,5})\]:")
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d{3})")
UNITS = re.compile(r"(GiB|MiB)$")


def read(path: Path) -> Log:
    """The steps that a console told of; what it told else is passed by."""
    values: defaultdict[int, dict[int, torchtitan_metrics.Values]] = defaultdict(dict)
    times: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for raw in content_of(path).splitlines():
        if len(raw) > LONGEST or b"step:" not in raw or b"loss:" not in raw:
            continue
        text = COLOURS.sub(b"", raw).decode("utf-8", "replace")
        if found := STEP.search(text):
            rank, step = rank_in(text), int(found[1])
            values[rank][step] = pairs(text[found.end() :])
            times[rank].setdefault(step, time_in(text))
    return Log([], [line for rank in sorted(values) for line in lines_of(rank, values[rank], times[rank])])


def rank_in(text: str) -> int:
    """The rank that torchrun puts before a line of several ranks' output."""
    found = RANK.match(text)
    return int(found[1]) if found else UNKNOWN


def lines_of(rank: int, values: dict[int, torchtitan_metrics.Values], times: dict[int, float]) -> list[Line]:
    lines = [torchtitan_metrics.line_of(step, values[step]) for step in sorted(values)]
    torchtitan_metrics.timed(lines, times)
    for line in lines:
        line.rank = rank
        torchtitan_metrics.rate(line, values[line.step])
    return lines


def pairs(text: str) -> torchtitan_metrics.Values:
    """The numbers behind their names: 1,234 has commas, memory a unit."""
    return {name: amount(value) for name, value in PAIR.findall(text)}


def amount(text: str) -> float:
    try:
        return float(UNITS.sub("", text).replace(",", "")) / (1024 if text.endswith("MiB") else 1)
    except ValueError:
        return math.nan


def time_in(text: str) -> float:
    """The logger's time in s; its zone is not told, so only differences mean something."""
    found = TIME.search(text)
    if not found:
        return math.nan
    try:
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp() + int(found[2]) / 1000
    except ValueError:
        return math.nan
