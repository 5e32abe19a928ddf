"""Explain a whole run: combine the reports on memory, hangs, steps, traces and logs, and put the first cause first.

    from analyzers import incident

    report = incident.analyze("outputs")
    print(report.verdict.sentence)                       # Rank 1 ran out of memory at step 6 in ...; rank 0 waits ...
    for link in report.data.chain:
        print(link.kind, link.ranks, link.text)          # oom [1] ..., waiting [0] ...

`analyzer_reports` runs each analyzer, `crash` finds the first exception, `chain` orders causes and effects, and
`sentences` writes the text.
"""

from analyzers.incident.model import IncidentClass, IncidentData, Link
from analyzers.incident.report import analyze

__all__ = ["IncidentClass", "IncidentData", "Link", "analyze"]
