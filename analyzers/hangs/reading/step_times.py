"""How long a rank has been where it is, and how long its steps took before."""

from pathlib import Path
from statistics import median

import msgspec

from analyzers.hangs.reading.side_files import Side
from analyzers.words import duration

TAIL_BYTES = 1 << 16
"""About a hundred lines of a step log."""
RECENT = 3
SLOWER = 1.5


def timing(side: Side, rank: int) -> str:
    """`it has been there for 4.8 s; its steps took 0.18 s before`, as far as known."""
    stay, steps = stay_s(side, rank), step_times(side.step_logs.get(rank))
    parts = [f"it has been there for {duration(stay)}"] if stay else []
    if steps:
        parts.append(before(steps))
    return "; ".join(parts)


def before(steps: list[float]) -> str:
    """What the steps took, and whether the last ones were slow already."""
    late, usual = median(steps[-RECENT:]), median(steps[:-RECENT] or steps)
    if late > SLOWER * usual:
        return f"slow already: its last {RECENT} steps took {duration(late)} each, those before {duration(usual)}"
    return f"its steps took {duration(median(steps))} before"


def stay_s(side: Side, rank: int) -> float | None:
    """Seconds since the rank last changed its phase, at the last look that saw it."""
    looks = side.collection.rounds if side.collection else []
    asked = next((a for look in reversed(looks) if (a := look.ranks.get(rank)) and a.status == "ok"), None)
    if asked is None or asked.heartbeat is None or not asked.asked_ns or not asked.heartbeat.time_ns:
        return None
    return max(0.0, (asked.asked_ns - asked.heartbeat.time_ns) / 1e9)


def step_times(log: Path | None) -> list[float]:
    """Durations in s of the last steps but the process's first one, which also warms up; a cut line is left out."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    steps = [step for line in lines if (step := duration_s(line)) is not None]
    return steps[1:]


def duration_s(line: bytes) -> float | None:
    try:
        told = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    found = told.get("dur_ns") if isinstance(told, dict) else None
    return found / 1e9 if isinstance(found, int) else None
