"""Where the time goes: profiler traces of PyTorch, on each rank and between them."""

from analyzers.traces.model import Kernel, RankTrace, RankWaits, StepTime, TraceData
from analyzers.traces.report import analyze

__all__ = ["Kernel", "RankTrace", "RankWaits", "StepTime", "TraceData", "analyze"]
