"""Measure how long a rank has been in its present phase (such as backward), and how long its earlier steps took."""

from pathlib import Path

import msgspec

from analyzers.files import open_regular
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import AnswerStatus

_TAIL_BYTES = 1 << 16
"""The number of bytes that are read at the end of a step log: about a hundred lines."""


def measure_phase(side: SideFiles, rank: int) -> float | None:
    """Return for how many seconds a rank had been in its phase when it last answered a request; None if unknown.

    A phase is a part of a step, such as backward; a request is one for a dump.
    """
    answers = (answer for number in reversed(side.rounds) if (answer := number.ranks.get(rank)))
    answer = next((a for a in answers if a.status == AnswerStatus.OK), None)
    if answer is None or answer.heartbeat is None or not answer.asked_ns or not answer.heartbeat.time_ns:
        return None
    return max(0.0, (answer.asked_ns - answer.heartbeat.time_ns) / 1e9)


def read_step_times(log: Path | None) -> list[float]:
    """Return the durations, in seconds, of the last steps in a rank's step log; empty if there is no log.

    The first step that is read is left out: it may be the first step of the process, which includes the warm-up.
    """
    if log is None:
        return []
    try:
        with open_regular(log) as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    steps = [step for line in lines if (step := duration_s(line)) is not None]
    return steps[1:]


def duration_s(line: bytes) -> float | None:
    """Return the duration of the step that a line of a step log describes, in seconds; None for any other line."""
    try:
        content = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    nanoseconds = content.get("dur_ns") if isinstance(content, dict) else None
    return nanoseconds / 1e9 if isinstance(nanoseconds, int) else None
