"""Typed views of a trace's columns, and what is derived from them once: lanes, nesting, kinds of work, phases."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analyzers.columns import Column, UnsavedColumns
from analyzers.store import Columns
from analyzers.traces.reading.distinct import combined_codes, distinct_values, first_rows
from analyzers.traces.reading.event_table import FIRST_TEXT_ID

DEVICE_WORK = {"kernel", "Kernel"}
COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
LAUNCHES = re.compile(r"runtime|driver", re.IGNORECASE)
ANNOTATIONS = {"user_annotation", "cpu_op", "Operator"}
OPS = {"cpu_op", "Operator"}
HOST = re.compile(r"^(cpu_op|operator|user_annotation|python_function|overhead|)$|runtime|driver", re.IGNORECASE)
COMMUNICATION = re.compile(r"nccl|rccl|hccl|nvshmem|deep_?ep|symm_mem|cross_device_reduce", re.IGNORECASE)
PROFILER_STEP = re.compile(r"ProfilerStep\s*#?(\d+)")
HOST_LANE, DEVICE_LANE, OTHER_LANE = range(3)


@dataclass(frozen=True)
class Trace:
    """The columns of one file: a row an event, `start` and `end` in nanoseconds of the file's own base."""

    columns: Columns | UnsavedColumns

    @property
    def header(self) -> Mapping[str, Any]:
        header: Mapping[str, Any] = self.columns.meta["header"]
        return header

    @cached_property
    def names(self) -> list[str]:
        return list(self.columns.meta["names"])

    def text_matches(self, wanted: "re.Pattern[str] | set[str]", among: Sequence[int] | None = None) -> Column:
        """A flag for each text, or each of some: is it in the set, or does the pattern find something in it?"""
        found = np.zeros(len(self.names), bool)
        for number in range(len(self.names)) if among is None else among:
            name = self.names[number]
            found[number] = name in wanted if isinstance(wanted, set) else wanted.search(name) is not None
        return found

    def name_matches(self, wanted: "re.Pattern[str] | set[str]") -> Column:
        """A flag for each event: does its name match?"""
        found: Column = self.text_matches(wanted)[self.columns["name"]]
        return found

    def category_matches(self, wanted: "re.Pattern[str] | set[str]") -> Column:
        """A flag for each event: is its category one of these?"""
        found: Column = self.text_matches(wanted, self.category_ids)[self.columns["cat"]]
        return found

    @cached_property
    def category_ids(self) -> list[int]:
        """The numbers of the categories among the texts, which are a few of thousands."""
        numbers: list[int] = distinct_values(self.columns["cat"]).tolist()
        return numbers

    @cached_property
    def work(self) -> Column:
        """The rows of device work, by category alone."""
        return np.flatnonzero(self.category_matches(DEVICE_WORK | COPIES))

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
        rows = np.flatnonzero(np.isin(self.columns["name"], list(numbers)) & self.category_matches(ANNOTATIONS))
        marks: dict[int, tuple[int, int, int]] = {}
        for row in rows.tolist():
            number = numbers[int(self.columns["name"][row])]
            marks.setdefault(number, (number, int(self.columns["start"][row]), int(self.columns["end"][row])))
        return sorted(marks.values(), key=lambda mark: mark[1])

    def step_index_at(self, at: Column) -> Column:
        """The position in `steps` of the step around each moment, -1 where there is none."""
        if not self.steps:
            return np.full(len(at), -1)
        bounds = np.array([mark[1:] for mark in self.steps], np.int64)
        place = np.searchsorted(bounds[:, 0], at, side="right") - 1
        return np.where((place >= 0) & (at < bounds[place, 1]), place, -1)

    @cached_property
    def origin(self) -> int:
        """The beginning of the first event, 0 where there is none."""
        start = self.columns["start"]
        return int(start.min()) if len(start) else 0


def find_lanes(trace: Trace) -> tuple[Column, list[dict[str, Any]]]:
    """The lane of each event, and of each lane its `kind` (HOST_LANE ...), `pid`, `tid` and `name`.

    The lanes of work have the device for a pid and the stream for a tid.
    """
    c = trace.columns
    stream = c["stream"][trace.work]
    kind = np.where(trace.category_matches(HOST), np.int8(HOST_LANE), np.int8(OTHER_LANE))
    pid = c["pid"].astype(np.result_type(c["pid"], trace.devices))
    tid = c["tid"].astype(np.result_type(c["tid"], stream))
    kind[trace.work] = DEVICE_LANE
    pid[trace.work] = trace.devices
    tid[trace.work] = np.where(stream == -1, tid[trace.work], stream)
    lane = combined_codes(kind, pid, tid)
    named = {(process, thread): text for process, thread, text in c.meta["threads"] if text}
    found = []
    for row in first_rows(lane).tolist():
        place = int(pid[row]), int(tid[row])
        name = lane_name(text_of_id(trace, place[1]), int(kind[row]), named.get(place, ""))
        found.append({"kind": int(kind[row]), "pid": place[0], "tid": place[1], "name": name})
    return lane, found


def lane_name(number: str, kind: int, known: str) -> str:
    """`stream 7`, `thread 4000 (python)`; recorders put the number of a thread into its name, or do not."""
    if kind != HOST_LANE:
        return f"stream {number}"
    return known if number in known else f"thread {number} {known}".strip()


def text_of_id(trace: Trace, number: int) -> str:
    """A pid, tid or stream as it stood in the file."""
    return str(number) if number > FIRST_TEXT_ID else trace.names[FIRST_TEXT_ID - number]
