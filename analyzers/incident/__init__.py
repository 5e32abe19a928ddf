"""The whole run in one story: joins memory, hangs, steps and traces, and puts the first cause first.

    from analyzers import incident

    report = incident.analyze("outputs")
    print(report.verdict.sentence)                       # rank 1 ran out of memory at step 6 in ...; rank 0 waits ...
    for link in report.data.chain:
        print(link.kind, link.ranks, link.text)          # oom [1] ..., waiting [0] ...

`rooms` asks each room, `crash` finds the first exception, `chain` orders causes and effects, `sentences` words them.
"""

from analyzers.incident.model import IncidentClass, IncidentData, Link
from analyzers.incident.report import analyze

__all__ = ["IncidentClass", "IncidentData", "Link", "analyze"]
