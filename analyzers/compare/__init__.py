"""Compare two runs: step time, loss, memory, traces and configuration, and whether the second run is worse.

    report = compare.analyze("before", "after")

`measuring` computes the measures of each run, `rows` and `configuration` build the tables that show both runs,
`findings` says which measures became worse, and `report` has the entry point `analyze`.
"""

from analyzers.compare.model import CompareData, Measures, Row, settings
from analyzers.compare.report import analyze
from analyzers.steps.diff import ALLOWED_CHANGES, Measure

__all__ = ["ALLOWED_CHANGES", "CompareData", "Measure", "Measures", "Row", "analyze", "settings"]
