"""Analyze text logs: find out why a job ended, from the output of its ranks, its launcher and its scheduler.

    from analyzers import logs

    report = logs.analyze("slurm-1234.out")
    print(report.verdict.sentence)               # Rank 2 ran out of memory: tried to allocate 18.5 GiB in model.py:88
    print(report.data.events[0].excerpt)         # the lines around the first event

The package `reading` turns lines into events: exceptions, timeouts, ends of processes, and so on. `answers` separates
the cause from its consequences and compares the ranks; `findings` writes the sentences. The module `views` has tables
for the user interfaces.
"""

from analyzers.case.facts import EventKind, Facts, LogClass, LogEvent, RankLog, Reason
from analyzers.logs.model import LogsData
from analyzers.logs.report import analyze

__all__ = ["EventKind", "Facts", "LogClass", "LogEvent", "LogsData", "RankLog", "Reason", "analyze"]
