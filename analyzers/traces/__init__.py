"""Where the time goes: profiler traces of PyTorch, on each rank and between them."""

from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.rank_waits import Group, Meeting, RankWaits
from analyzers.traces.across.stragglers import Straggler
from analyzers.traces.report import TraceData, analyze, critical_parts, with_critical_path
from analyzers.traces.structs import Kernel, Part, RankTrace, StepTime

__all__ = [
    "Clock",
    "Group",
    "Kernel",
    "Meeting",
    "Part",
    "RankTrace",
    "RankWaits",
    "StepTime",
    "Straggler",
    "TraceData",
    "analyze",
    "critical_parts",
    "with_critical_path",
]
