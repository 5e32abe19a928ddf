"""Run against run: step time, loss, memory, traces and configuration, and whether the second run is worse.

    report = compare.analyze("before", "after")

`measuring` takes the numbers of each run, `rows` and `configuration` put them side by side, `findings` says what became
worse, `report` is the door.
"""

from analyzers.compare.configuration import settings
from analyzers.compare.model import CompareData, Measures, Row
from analyzers.compare.report import analyze
from analyzers.steps.diff.measures import ALLOWED_CHANGES, Measure

__all__ = ["ALLOWED_CHANGES", "CompareData", "Measure", "Measures", "Row", "analyze", "settings"]
