"""Define the structs of the JSON document `workbench.incident/1`, and the classes of verdicts on a whole run."""

from enum import StrEnum

import msgspec

from analyzers.hangs import HangData
from analyzers.logs import LogsData
from analyzers.memory import MemoryData
from analyzers.steps import StepsData
from analyzers.traces import TraceData


class IncidentClass(StrEnum):
    """The classes that only apply to a whole run: of its verdict, and of the events (`Link`) that led to its end.

    Other verdicts and events have a class of a single analyzer, such as `HangClass`. `WAITING` is the class of an event
    about ranks that only wait for a culprit.
    """

    OOM = "oom"
    CRASHED = "crashed"
    WAITING = "waiting"
    LAUNCHER_LOST = "launcher_lost"
    UNKNOWN = "unknown"
    HEALTHY = "healthy"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the chain from the first cause of an incident to its last effect.

    `text` is the sentence about it. `kind` (`class` in JSON) is its class, such as `oom` or `waiting`. `ranks` are the
    ranks that it is about, and `step` is its training step (None: unknown). `findings` are the ids of the findings that
    it is based on.
    """

    text: str
    kind: str = msgspec.field(name="class")
    ranks: list[int] = []
    step: int | None = None
    findings: list[str] = []


class IncidentData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.incident/1`: the results of all analyzers for one run.

    `memory`, `hang`, `trace`, `steps` and `logs` are the fields `data` of the analyzers' own documents; each is None if
    there is nothing to read for it. `chain` has the events that led to the end of the run, the first cause first.
    """

    memory: MemoryData | None
    hang: HangData | None
    trace: TraceData | None
    steps: StepsData | None
    logs: LogsData | None
    chain: list[Link]
