"""Give typed access to a trace's columns: which events are device work, when steps were, each event's lane.

A *lane* is a thread of the host or a stream of a device.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, TypedDict, cast

import msgspec
import numpy as np

from analyzers.columns import Integers, Mask, UnsavedColumns
from analyzers.store import Columns
from analyzers.traces.reading.numbering import FIRST_TEXT_ID, combined_codes, distinct_values, first_rows

# Categories as Kineto writes them, older spellings beside them. Other accelerators use the same ones for their work.
_DEVICE_WORK = {"kernel", "Kernel"}
_ON_MTIA = {"mtia_ccp_events"}
"""The categories of what MTIA's control processors run: kernels, and their own small DMA requests without a launch."""
COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
LAUNCHES = re.compile(r"runtime|driver", re.IGNORECASE)
ANNOTATIONS = {"user_annotation", "cpu_op", "Operator"}
OPS = {"cpu_op", "Operator"}
HOST = re.compile(r"^(cpu_op|operator|user_annotation|python_function|overhead|)$|runtime|driver", re.IGNORECASE)
PEER_COPY = re.compile(r"^Memcpy PtoP\b")
"""Matches the copies between two devices: collectives on copy engines, and parts of a model on several devices."""
# Not every communication kernel is NCCL's: DeepEP, pplx-kernels, NVSHMEM, MSCCL, symmetric memory, and the all-reduces
# of vLLM, TensorRT-LLM, Transformer Engine (userbuffers) and AMD bring their own. DeepEP's are called `dispatch` and
# `combine` in namespaces of its own; those of pplx-kernels have no namespace, but numbers and flags as parameters.
COMMUNICATION_NAMES = re.compile(
    r"nccl|rccl|hccl|nvshmem|rocshmem|mscclpp|mscclKernel|deep_?ep|symm_mem|symmetric_memory|cross_device_reduce"
    r"|(inter|intra)node(_ll)?::(dispatch|combine|notify_dispatch|cached_notify)|cached_notify_(dispatch|combine)"
    r"|pplx|\b(dispatch|combine)Kernel<\d+u?, (\w+, )*(true|false)|a2a_(dispatch|combine)_(send|recv)|moeA2A\w+Kernel"
    r"|\ballToAllV(_2d)?[<(]|exchangeSplitAndOffset|multimem_\w*(reduce|gather)|(one|two)_?shot_?\w*reduce"
    r"|quickreduce::|allreduce_(prototype|fusion_kernel)|lamport|userbuffers_|^Memcpy PtoP\b",
    re.IGNORECASE,
)
PROFILER_STEP = re.compile(r"ProfilerStep\s*#?(\d+)")
HOST_LANE, DEVICE_LANE, _OTHER_LANE = range(3)
NO_STEP = -1


class Lane(TypedDict):
    """A thread of the host or a stream of a device; two events of a lane are nested or do not overlap.

    `kind` is `HOST_LANE`, `DEVICE_LANE` or `_OTHER_LANE` (such as the profiler's own marks). For a stream `pid` is the
    number of the device and `tid` the number of the stream.
    """

    kind: int
    pid: int
    tid: int
    name: str


@dataclass(frozen=True)
class Trace:
    """The columns of one trace file, with a row per event.

    `start` and `end` are in nanoseconds of the trace's own clock; add `base` to get Unix time.
    """

    columns: Columns | UnsavedColumns
    _values_of_texts: dict[Callable[[str], int], Integers] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _matches_of_patterns: dict["re.Pattern[str]", Mask] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def header(self) -> Mapping[str, Any]:
        """The properties of the job that are recorded in the file, such as `rank`; see `reader.header_of`."""
        return cast("Mapping[str, Any]", self.columns.meta["header"])

    @property
    def base(self) -> int:
        """The Unix time (ns) at which the trace's own clock is 0.

        Add it to a time in the columns to get Unix time.
        """
        return int(self.header.get("base_ns", 0))

    @property
    def lanes(self) -> list[Lane]:
        """The lanes (threads and streams) of the events; the column `lane` holds indices into this list."""
        return cast("list[Lane]", self.columns.meta["lanes"])

    @cached_property
    def names(self) -> list[str]:
        """All distinct texts of the trace; the columns `name` and `cat` (category) hold indices into this list."""
        return cast("list[str]", self.columns.meta["names"])

    def text_values(self, value_of: Callable[[str], int]) -> Integers:
        """Return the result of the function `value_of` for each of the texts in `names`; it is called once for each.

        If there are no texts, the result has one item, for the empty text, so that an empty column can be an index into
        it.
        """
        if value_of not in self._values_of_texts:
            self._values_of_texts[value_of] = np.array([value_of(name) for name in self.names or [""]], np.int64)
        return self._values_of_texts[value_of]

    def text_matches(self, wanted: "re.Pattern[str] | set[str]", among: Sequence[int] | None = None) -> Mask:
        """Return a mask of the texts in `names` that are in the set `wanted` or contain the pattern `wanted`.

        If `among` is given, only the texts with these indices can match. Callers must not change the mask, because it
        is cached for each pattern.
        """
        if isinstance(wanted, set):
            return self.matching(wanted.__contains__, among)
        if among is not None:
            return self.matching(wanted.search, among)
        if wanted not in self._matches_of_patterns:
            self._matches_of_patterns[wanted] = self.matching(wanted.search)
        return self._matches_of_patterns[wanted]

    def matching(self, matches: Callable[[str], object], among: Sequence[int] | None = None) -> Mask:
        """Return a mask of the texts in `names` for which `matches` is true; `among` restricts it to these indices."""
        mask = np.zeros(len(self.names), bool)
        names = self.names if among is None else [self.names[number] for number in among]
        mask[slice(None) if among is None else among] = [bool(matches(name)) for name in names]
        return mask

    def name_matches(self, wanted: "re.Pattern[str] | set[str]") -> Mask:
        return self.text_matches(wanted).take(self.columns["name"])

    def category_matches(self, wanted: "re.Pattern[str] | set[str]") -> Mask:
        return self.text_matches(wanted, self.category_ids).take(self.columns["cat"])

    def rows_named(self, texts: Mask, category: "re.Pattern[str] | set[str]") -> Integers:
        """Return the rows of the events whose name is selected by `texts` and whose category matches `category`.

        `texts` is a mask over `names`. This is fast if few events have such a name, because only their categories are
        read.
        """
        rows = np.flatnonzero(texts.take(self.columns["name"]))
        return rows[self.text_matches(category, self.category_ids)[self.columns["cat"][rows]]]

    def lane_is(self, *kinds: int) -> Mask:
        # The one lane of a file without events keeps what is indexed by the empty column `lane` of the right type.
        return np.array([lane["kind"] in kinds for lane in self.lanes] or [False])

    @cached_property
    def category_ids(self) -> list[int]:
        """The indices in `names` of the texts that are categories; they are few, so it is fast to search only them."""
        return [int(number) for number in distinct_values(self.columns["cat"])]

    @cached_property
    def work(self) -> Integers:
        """The rows of the events that are work of a device: kernels, memory copies and memsets.

        They are recognised by category, because events of other categories may have a device or a stream, too. The DMA
        requests of MTIA's control processors are left out, because they lie inside its kernels.
        """
        launched_on_mtia = self.category_matches(_ON_MTIA) & (self.columns["correlation"] >= 0)
        return np.flatnonzero(self.category_matches(_DEVICE_WORK | COPIES) | launched_on_mtia)

    @cached_property
    def devices(self) -> Integers:
        """The device number of each row in `work`, in the same order: the recorded device, else the event's pid."""
        recorded, pid = self.columns["device"][self.work], self.columns["pid"][self.work]
        return np.maximum(np.where(recorded >= 0, recorded, pid), 0)

    @cached_property
    def steps(self) -> list[tuple[int, int, int]]:
        """The (number, start, end) of each `ProfilerStep#N` of the host, by start time; ns of the trace's clock."""
        numbers = {i: int(mark[1]) for i, name in enumerate(self.names) if (mark := PROFILER_STEP.fullmatch(name))}
        if not numbers:
            return []
        # The device has annotations of the same name, the hull of the step's kernels: no wall time.
        rows = self.rows_named(self.text_matches({self.names[number] for number in numbers}), ANNOTATIONS)
        marks: dict[int, tuple[int, int, int]] = {}
        for row in rows.tolist():
            number = numbers[int(self.columns["name"][row])]
            marks.setdefault(number, (number, int(self.columns["start"][row]), int(self.columns["end"][row])))
        return sorted(marks.values(), key=lambda mark: mark[1])

    def step_index_at(self, at: Integers) -> Integers:
        """Return, for each time in `at` (ns of the trace's clock), the index in `steps` of its step, or `NO_STEP`."""
        if not self.steps:
            return np.full(len(at), NO_STEP)
        bounds = np.array([mark[1:] for mark in self.steps], np.int64)
        index = np.searchsorted(bounds[:, 0], at, side="right") - 1
        return np.where((index >= 0) & (at < bounds[index, 1]), index, NO_STEP)

    @cached_property
    def origin(self) -> int:
        """The start of the first event, in nanoseconds of the trace's clock; 0 if there are no events."""
        start = self.columns["start"]
        return int(start.min()) if len(start) else 0


def find_lanes(trace: Trace) -> tuple[Integers, list[Lane]]:
    """Return, for each event, the index of the thread or stream in which it runs (its lane), and the list of lanes.

    Device work belongs to the lane of its device and stream, whatever pid and tid the recorder wrote.
    """
    c = trace.columns
    stream = c["stream"][trace.work]
    kind = np.where(trace.category_matches(HOST), np.int8(HOST_LANE), np.int8(_OTHER_LANE))
    # Work lies in the lane of its device and stream, whatever pid and tid the recorder gave it.
    pid = c["pid"].astype(np.result_type(c["pid"], trace.devices))
    tid = c["tid"].astype(np.result_type(c["tid"], stream))
    kind[trace.work] = DEVICE_LANE
    pid[trace.work] = trace.devices
    tid[trace.work] = np.where(stream == -1, tid[trace.work], stream)
    lane = combined_codes(kind, pid, tid)
    thread_names = {(process, thread): text for process, thread, text in c.meta["threads"] if text}
    lanes: list[Lane] = []
    for row in first_rows(lane).tolist():
        process, thread = int(pid[row]), int(tid[row])
        name = _lane_name(_id_text(trace, thread), int(kind[row]), thread_names.get((process, thread), ""))
        lanes.append(Lane(kind=int(kind[row]), pid=process, tid=thread, name=name))
    return lane, lanes


def _lane_name(number: str, kind: int, thread_name: str) -> str:
    """Return the name of a lane, such as `stream 7` or `thread 4000 (python)`.

    `number` is the stream or the thread, as text, and `kind` is `HOST_LANE` for a thread. `thread_name` is its
    recorded name; some recorders already put the number of a thread into it.
    """
    if kind != HOST_LANE:
        return f"stream {number}"
    return thread_name if number in thread_name else f"thread {number} {thread_name}".strip()


def _id_text(trace: Trace, number: int) -> str:
    return str(number) if number > FIRST_TEXT_ID else trace.names[FIRST_TEXT_ID - number]


class ProblemKind(StrEnum):
    """A kind of problem of a trace: a defect of its file, or a property of its events that limits what they mean."""

    CUT_OFF = "cut_off"
    REPLACED_TEXT = "replaced_text"
    UNKNOWN_EVENTS = "unknown_events"
    ODD_ARGUMENTS = "odd_arguments"
    IMPOSSIBLE_TIMES = "impossible_times"
    NO_DEVICE_EVENTS = "no_device_events"
    NO_LAUNCH = "no_launch"
    LOST_KERNELS = "lost_kernels"
    EARLY_KERNELS = "early_kernels"
    OVERLAPPING_EVENTS = "overlapping_events"
    SHARED_CORRELATION = "shared_correlation"
    OUTSIDE_STEPS = "outside_steps"
    CUT_STEPS = "cut_steps"
    NO_STEPS = "no_steps"
    OVERLAPPING_STEPS = "overlapping_steps"
    FORWARD_ONLY_STEPS = "forward_only_steps"


DAMAGE = {
    ProblemKind.CUT_OFF,
    ProblemKind.REPLACED_TEXT,
    ProblemKind.UNKNOWN_EVENTS,
    ProblemKind.ODD_ARGUMENTS,
    ProblemKind.IMPOSSIBLE_TIMES,
}
"""The kinds of problem in which a part of the file is damaged, so that a part of the recording is lost."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a trace: it concerns `count` events or steps (0: not counted), of `total` if that is not 0.

    `most_ns` is the longest time by which a kernel began before its launch (`EARLY_KERNELS` only). `names` are the
    names of the steps that were still running when the recording ended (`CUT_STEPS` only).
    """

    kind: ProblemKind
    count: int = 0
    total: int = 0
    most_ns: int = 0
    names: list[str] = []
