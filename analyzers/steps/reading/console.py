"""Read the lines that torchtitan prints on the console, with or without colours, of one rank or several in one file.

For example:

    [rank0]:[titan] 2026-01-01 10:00:01,250 - root - INFO - step:  7  loss:  8.0123  memory:  1.5GiB(3%)  tps: 1,234
"""

import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from analyzers.steps.reading import tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log, bytes_of

LONGEST_LINE = 4096
"""The most bytes of a line that is parsed; on a longer, hostile line a regular expression could take very long."""
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
STEP = re.compile(r"(?<!validate )\bstep:\s+(\d{1,15})\b")
_PAIR = re.compile(r"\b(loss|grad_norm|memory|tps|wps):\s+([-+\w.,]+)")
RANK = re.compile(r"^\[(?:rank|default)(\d{1,5})\]:")
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d{3})")
UNITS = re.compile(r"(GiB|MiB)$")


def read(path: Path) -> Log:
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
