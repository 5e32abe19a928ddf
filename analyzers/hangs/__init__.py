"""Find out which ranks hang a training job, and why, from Flight Recorder dumps and the files beside them.

    from analyzers import hangs

    report = hangs.analyze("outputs")
    print(report.verdict.kind, report.verdict.ranks)    # host_stuck [3]
    print(report.data.culprits[0].victims)              # [0, 1, 2]

A hang begins with culprits: ranks that wait for no other rank. The ranks that wait for them, directly or through
others, are the victims.

`reading` reads the dumps and other files of a job into a `Job`; `graph` compares the ranks and builds the wait-for
graph, which shows which rank waits for which; `classify` derives the causes of the hang from this graph; `findings`
writes the sentences of the report; `views` prepares tables and charts for the user interfaces.
"""

from analyzers.hangs.model import Culprit, Frame, Group, HangClass, HangData, Wait
from analyzers.hangs.reading.exits import is_victim, read_errors
from analyzers.hangs.reading.side_formats import ExitFile
from analyzers.hangs.report import analyze, has_ended_cleanly

__all__ = [
    "Culprit",
    "ExitFile",
    "Frame",
    "Group",
    "HangClass",
    "HangData",
    "Wait",
    "analyze",
    "has_ended_cleanly",
    "is_victim",
    "read_errors",
]
