"""Numbers, ranks and facts as people read them in sentences."""

from analyzers.memory.model import Device
from analyzers.report import Evidence


def size(count: float) -> str:
    """Bytes in the unit that keeps three digits: `64.0 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def listed(ranks: list[int]) -> str:
    """`rank 3`, `ranks 1 and 2`, `ranks 0, 1, 2 and 5 more`."""
    if not ranks:
        return "the process"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named, more = ranks[:4], len(ranks) - 4
    last = f"{more} more" if more > 0 else str(named.pop())
    return f"ranks {', '.join(map(str, named))} and {last}"


def fact(device: Device, text: str, line: str = "") -> Evidence:
    return Evidence(text=text, source=device.path, line=line)


def ranks_of(device: Device) -> list[int]:
    return [] if device.rank is None else [device.rank]
