"""Where the time goes: profiler traces of PyTorch, on each rank and between them."""

from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.rank_waits import CollectiveWait, GroupWaits, RankWaits
from analyzers.traces.across.stragglers import Straggler
from analyzers.traces.report import TraceData, analyze, critical_parts, with_critical_path
from analyzers.traces.structs import Breakdown, Kernel, RankTrace, StepTime

__all__ = [
    "Breakdown",
    "Clock",
    "CollectiveWait",
    "GroupWaits",
    "Kernel",
    "RankTrace",
    "RankWaits",
    "StepTime",
    "Straggler",
    "TraceData",
    "analyze",
    "critical_parts",
    "with_critical_path",
]
