"""Typed views of a trace's columns, and the structs of `workbench.trace/1`."""

import re
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from analyzers.run import Artefact
from analyzers.store import Columns
from analyzers.traces.table import Column

DEVICE_WORK = {"kernel", "Kernel"}
COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
LAUNCHES = re.compile(r"runtime|driver", re.IGNORECASE)
ANNOTATIONS = {"user_annotation", "cpu_op", "Operator"}
OPS = {"cpu_op", "Operator"}
COMMUNICATION = re.compile(r"nccl|rccl|hccl|nvshmem|deep_?ep|symm_mem|cross_device_reduce", re.IGNORECASE)
PROFILER_STEP = re.compile(r"ProfilerStep\s*#?(\d+)")


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kernel; of one operator's own time in a CPU trace."""

    name: str
    kind: str
    count: int
    total_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """One `ProfilerStep#N`: its wall time on the host, and the work that was launched inside it."""

    step: int
    start_ns: int
    dur_ns: int
    events: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one file; `device` is null and `source` "cpu" where the work is that of the host itself."""

    path: str
    rank: int | None
    device: int | None
    world_size: int | None
    backend: str | None
    source: str
    steps: int
    device_events: int
    unlinked_events: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    idle_host_ns: int
    idle_queue_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    overlapped_communication_ns: int
    memory_ns: int
    exposed_memory_ns: int
    kernels: list[Kernel]
    step_times: list[StepTime]
    problems: list[str]


class RankWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a rank waited in collectives for the others, and in how many of them it came last."""

    rank: int
    collectives: int
    wait_ns: int
    last_arrivals: int
    window_ns: int


class TraceData(msgspec.Struct, frozen=True):
    """`data` of a trace report; `waits` has a row a rank where collectives of several ranks could be matched."""

    ranks: list[RankTrace]
    waits: list[RankWaits]


@dataclass(frozen=True)
class Trace:
    """The columns of one file: a row an event, `start` and `end` in nanoseconds of the file's own base."""

    artefact: Artefact
    columns: Columns

    @property
    def rank(self) -> int | None:
        noted: int | None = self.columns.meta["header"].get("rank")
        return self.artefact.rank if noted is None else noted

    @property
    def world_size(self) -> int | None:
        size: int | None = self.columns.meta["header"].get("world_size")
        return size

    @property
    def backend(self) -> str | None:
        backend: str | None = self.columns.meta["header"].get("backend")
        return backend

    @cached_property
    def names(self) -> list[str]:
        return list(self.columns.meta["names"])

    def named(self, wanted: "re.Pattern[str] | set[str]") -> Column:
        """A flag for each text: is it in the set, or does the pattern find something in it?"""
        hits = (name in wanted if isinstance(wanted, set) else wanted.search(name) is not None for name in self.names)
        return np.fromiter(hits, bool, len(self.names))

    def of_cat(self, wanted: "re.Pattern[str] | set[str]") -> Column:
        """A flag for each event: is its category one of these?"""
        found: Column = self.named(wanted)[self.columns["cat"]]
        return found

    @cached_property
    def work(self) -> Column:
        """The rows of device work, by category alone."""
        return np.flatnonzero(self.of_cat(DEVICE_WORK | COPIES))

    @cached_property
    def devices(self) -> Column:
        """The device of each row of `work`."""
        noted, pid = self.columns["device"][self.work], self.columns["pid"][self.work]
        return np.maximum(np.where(noted >= 0, noted, pid), 0)

    @cached_property
    def steps(self) -> list[tuple[int, int, int]]:
        """(number, start, end) of each `ProfilerStep#N` of the host, in order."""
        numbers = {i: int(found[1]) for i, name in enumerate(self.names) if (found := PROFILER_STEP.fullmatch(name))}
        if not numbers:
            return []
        rows = np.flatnonzero(np.isin(self.columns["name"], list(numbers)) & self.of_cat(ANNOTATIONS))
        marks: dict[int, tuple[int, int, int]] = {}
        for row in rows.tolist():
            number = numbers[int(self.columns["name"][row])]
            marks.setdefault(number, (number, int(self.columns["start"][row]), int(self.columns["end"][row])))
        return sorted(marks.values(), key=lambda mark: mark[1])
