"""Numbers, ranks and facts as people read them in sentences."""

from collections.abc import Sequence

from analyzers.memory.model import Device
from analyzers.report import Evidence
from analyzers.words import who


def size(count: float) -> str:
    """Bytes in the unit that keeps three digits: `64.0 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def listed(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`; snapshots often do not say which rank they are of."""
    return who(ranks) if ranks else "the process"


def fact(device: Device, text: str, line: str = "") -> Evidence:
    return Evidence(text=text, source=device.path, line=line)


def ranks_of(device: Device) -> list[int]:
    return [] if device.rank is None else [device.rank]
