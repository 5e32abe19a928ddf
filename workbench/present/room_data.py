"""Find the data of each analyzer (memory, hang, trace, ...) in a report, which may come from one analyzer or several.

An analyzer together with its tables and views is called a room.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from analyzers.report import Report

if TYPE_CHECKING:
    from analyzers.compare import CompareData
    from analyzers.hangs.model import HangData
    from analyzers.logs.model import LogsData
    from analyzers.memory.model import MemoryData
    from analyzers.parity import BisectData, ParityData
    from analyzers.steps.model import StepsData
    from analyzers.traces.report import TraceData


@dataclass(frozen=True)
class RoomData:
    """The data of each analyzer (memory, hang, ...) in a report; None if the report has no data of this analyzer."""

    memory: "MemoryData | None" = None
    hang: "HangData | None" = None
    trace: "TraceData | None" = None
    steps: "StepsData | None" = None
    logs: "LogsData | None" = None
    compare: "CompareData | None" = None
    parity: "ParityData | None" = None
    bisect: "BisectData | None" = None

    @property
    def names(self) -> frozenset[str]:
        """The names of the analyzers that have data; the terminal app and the dashboard show a view for each."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) is not None)


def room_data(report: Report[object]) -> RoomData:
    """Return the data of a report, separated by analyzer."""
    data, kind = report.data, type(report.data).__name__
    # Only the room that made the data is imported: a report of one room must not wait for the libraries of another.
    if kind == "MemoryData":
        from analyzers.memory.model import MemoryData

        return RoomData(memory=data if isinstance(data, MemoryData) else None)
    if kind == "HangData":
        from analyzers.hangs.model import HangData

        return RoomData(hang=data if isinstance(data, HangData) else None)
    if kind == "TraceData":
        from analyzers.traces.report import TraceData

        return RoomData(trace=data if isinstance(data, TraceData) else None)
    if kind == "StepsData":
        from analyzers.steps.model import StepsData

        return RoomData(steps=data if isinstance(data, StepsData) else None)
    if kind == "LogsData":
        from analyzers.logs.model import LogsData

        return RoomData(logs=data if isinstance(data, LogsData) else None)
    return _joined_data(data)


def _joined_data(data: object) -> RoomData:
    """Return the data of a report that joins several analyzers or compares runs, separated by analyzer."""
    from analyzers.compare import CompareData
    from analyzers.incident import IncidentData
    from analyzers.parity import BisectData, ParityData

    if isinstance(data, IncidentData):
        return RoomData(data.memory, data.hang, data.trace, data.steps, data.logs)
    if isinstance(data, ParityData):
        return RoomData(parity=data)
    if isinstance(data, BisectData):
        return RoomData(bisect=data)
    return RoomData(compare=data if isinstance(data, CompareData) else None)
