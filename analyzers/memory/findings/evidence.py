"""Numbers, ranks and facts as people read them in sentences."""

from collections.abc import Sequence

from analyzers.memory.model import Device
from analyzers.report import Evidence
from analyzers.words import rank_names


def listed(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`; snapshots often do not say which rank they are of."""
    return rank_names(ranks) if ranks else "the process"


def fact(device: Device, text: str, line: str = "") -> Evidence:
    return Evidence(text=text, source=device.path, line=line)


def ranks_of(device: Device) -> list[int]:
    return [] if device.rank is None else [device.rank]
