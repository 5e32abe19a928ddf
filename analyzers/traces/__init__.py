"""Where the time goes: profiler traces of PyTorch, on each rank and between them."""

from analyzers.traces.across import Group, Meeting, RankWaits
from analyzers.traces.answers import Kernel, Part, RankTrace, StepTime
from analyzers.traces.clocks import Clock
from analyzers.traces.report import TraceData, analyze, critical_parts, with_critical_path
from analyzers.traces.stragglers import Straggler

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
