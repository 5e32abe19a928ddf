"""Analyze profiler traces of PyTorch: where the time goes, on each rank and between ranks.

| name | what it is |
|---|---|
| `analyze(artefacts, options)` | the entry point: traces in, `Report[TraceData]` out |
| `with_critical_path(report, options)` | the same report with `data.critical` filled in |
| `critical_parts(account, options)` | the critical path of the last step of one device or host, by kind and name |
| `views` (a module) | small tables to draw: time lines, call trees, lateness |
| `TraceData` | the `data` of a report: `ranks`, `waits`, `stragglers`, `groups`, `axes`, `meetings`, `clocks` |
| `RankTrace` | one device (or host) of one file: its time by kind of work, with `Kernel`, `StepTime`, `Breakdown` |
| `RankWaits`, `CollectiveWait`, `GroupWaits`, `AxisWaits` | waiting by rank, collective, process group, mesh axis |
| `Straggler`, `Cause` | the rank that the others wait for, and why |
| `Clock` | how far a rank's clock is from the first rank's |

An *account* is one device of one trace file, or its host if no device worked. All times are integer nanoseconds.
"""

from analyzers.traces.clocks import Clock
from analyzers.traces.model import Breakdown, Kernel, RankTrace, StepTime
from analyzers.traces.rank_waits import AxisWaits, CollectiveWait, GroupWaits, RankWaits
from analyzers.traces.report import TraceData, analyze, critical_parts, with_critical_path
from analyzers.traces.stragglers import Cause, Straggler

__all__ = [
    "AxisWaits",
    "Breakdown",
    "Cause",
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
