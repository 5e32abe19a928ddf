"""Find the work of each device in a trace: kernels and copies; or of a host without devices: operators, collectives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns.intervals import COMMUNICATION as COMMUNICATING
from analyzers.traces.columns.intervals import COMPUTE, MEMORY
from analyzers.traces.columns.nesting import NONE, innermost_selected, self_times
from analyzers.traces.reading.distinct import distinct_values
from analyzers.traces.reading.trace import (
    ANNOTATIONS,
    COMMUNICATION,
    COPIES,
    HOST_LANE,
    LAUNCHES,
    NO_STEP,
    OPS,
    PEER_COPY,
    Trace,
)

# gloo runs a collective, the wait for others included, inside such an annotation on a thread of its own.
_HOST_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):")
_HOST_MESSAGE = re.compile(r":(send|recv)")
# Issuing a collective is not computing, and what autograd calls its own may do nothing but wait for one.
_LAUNCHES_KERNEL, _CAPTURES = re.compile(r"LaunchKernel(ExC)?$"), re.compile(r"StreamBeginCapture")
_HOST_OPERATOR = re.compile(r"^(?!_?c10d|autograd::|gloo|mpi|ucc|nccl|profiler::)\w+::")


@dataclass(frozen=True)
class Work:
    """The work (kernels, copies) of one device in one trace, or of a host without devices.

    Arrays have an entry per event. The events of a host are its operators and collectives. `rows` has the row of each
    event in the trace. `kind` is COMPUTE, COMMUNICATION or MEMORY. `launch` has the row of the call that launched the
    event, or NONE if it was not recorded; an event of a host has its own row there. `own` is the duration of the event
    in ns; on a host, where events call others, the time inside called events is left out.
    """

    trace: Trace
    device: int | None
    rows: Integers
    kind: Column
    launch: Column
    own: Column

    @cached_property
    def start(self) -> Column:
        """The start of each event, in ns of the trace's clock."""
        return self.trace.columns["start"][self.rows]

    @cached_property
    def end(self) -> Column:
        return self.trace.columns["end"][self.rows]

    @cached_property
    def linked(self) -> Mask:
        return np.asarray(self.launch != NONE)

    @cached_property
    def launch_start(self) -> Integers:
        """The start of the call that launched each event, in ns of the trace's clock; -1 if it was not recorded."""
        return np.where(self.linked, self.trace.columns["start"][self.launch], -1)

    @cached_property
    def launch_end(self) -> Integers:
        """The end of the call that launched each event, in ns of the trace's clock; -1 if it was not recorded."""
        return np.where(self.linked, self.trace.columns["end"][self.launch], -1)

    @cached_property
    def phase(self) -> Integers:
        """The phase of the step (such as forward) that launched each event, as an index into `phases.PHASE_NAMES`.

        It is -1 if the trace does not show which code launched the event.
        """
        return np.where(self.linked, self.trace.columns["phase"][self.launch], -1)

    @cached_property
    def expected_and_lost(self) -> tuple[int, int]:
        """The number of launches whose kernels should be in the file, and how many of these kernels are missing in it.

        Kernels launched at the end may run after the recording, so only launches before that of the last recorded
        kernel count. The result is (0, 0) if a CUDA graph was captured, as its launches run nothing, or if no launch is
        known.
        """
        trace, c = self.trace, self.trace.columns
        if not self.linked.any() or trace.text_matches(_CAPTURES).any():
            return 0, 0
        calls = trace.rows_named(trace.text_matches(_LAUNCHES_KERNEL), LAUNCHES)
        calls = calls[(c["correlation"][calls] >= 0) & (c["start"][calls] < self.launch_start[self.linked].max())]
        recorded = distinct_values(c["correlation"][trace.work])
        return len(calls), int((~np.isin(c["correlation"][calls], recorded)).sum())

    def step(self) -> Integers:
        """Return, for each event, the index in `trace.steps` of the step that launched it, or NO_STEP.

        A kernel belongs to the step that launched it, even if it runs while the host is already in the next step.
        """
        return np.where(self.linked, self.trace.step_index_at(self.launch_start), NO_STEP)


def work_of_accounts(trace: Trace) -> list[Work]:
    if not len(trace.work):
        return [_host_work(trace)]
    return [_device_work(trace, int(device)) for device in distinct_values(trace.devices)]


def _device_work(trace: Trace, device: int) -> Work:
    c = trace.columns
    rows = trace.work[trace.devices == device]
    communicates = trace.text_matches(COMMUNICATION)[c["name"][rows]] | np.isin(rows, c["collective_row"])
    kind = np.where(communicates, np.int8(COMMUNICATING), np.int8(COMPUTE))
    # A copy stays one, whatever it is called, unless it goes to another device.
    kind[trace.category_matches(COPIES)[rows] & ~trace.text_matches(PEER_COPY)[c["name"][rows]]] = MEMORY
    return Work(
        trace=trace,
        device=device,
        rows=rows,
        kind=kind,
        launch=launching_rows(trace, c["correlation"][rows]),
        own=c["end"][rows] - c["start"][rows],
    )


def launching_rows(trace: Trace, correlation: Column) -> Integers:
    """Return, for each correlation id of a kernel, the trace row of the call that launched it, or NONE.

    A kernel and the call that launched it have the same id. All kernels of one launched CUDA graph share the id of its
    launch.
    """
    calls = np.flatnonzero(trace.category_matches(LAUNCHES) & (trace.columns["correlation"] >= 0))
    if not len(calls):
        return np.full(len(correlation), NONE)
    calls = calls[np.argsort(trace.columns["correlation"][calls], kind="stable")]
    known = trace.columns["correlation"][calls]
    candidate = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where(known[candidate] == correlation, calls[candidate], NONE)


def launched_rows(trace: Trace, row: int) -> tuple[Integers, Integers]:
    """Return the trace rows of the device work that a host event launched, and the row of each one's launching call.

    Calls inside the event (an operator or a step, for example) count, too. The work is in order of its start.
    """
    c = trace.columns
    start, end = c["start"], c["end"]
    inside = (c["lane"] == c["lane"][row]) & (start >= start[row]) & (end <= end[row])
    calls = inside & trace.category_matches(LAUNCHES) & (c["correlation"] >= 0)
    correlation = c["correlation"][trace.work]
    work = trace.work[np.isin(correlation, c["correlation"][calls])]
    work = work[np.argsort(start[work], kind="stable")]
    return work, launching_rows(trace, c["correlation"][work])


def _host_work(trace: Trace) -> Work:
    """Return the work of a host: its operators and the collectives that ran on it.

    Operators on the threads that run the collectives are left out.
    """
    c = trace.columns
    collective = trace.name_matches(_HOST_COLLECTIVE) & trace.category_matches(ANNOTATIONS)
    # Only a send or a receive is in the lane of the thread that calls it, which computes beside it.
    collective_lanes = distinct_values(c["lane"][collective & ~trace.name_matches(_HOST_MESSAGE)])
    operators = trace.category_matches(OPS) & trace.name_matches(_HOST_OPERATOR)
    working = collective | (operators & ~np.isin(c["lane"], collective_lanes))
    rows = np.flatnonzero(working)
    # The own time of an operator leaves out the operators that it calls, however many other events lie between.
    innermost = innermost_selected(working, c["parent"])
    around = np.where(c["parent"] >= 0, innermost[c["parent"]], NONE)
    return Work(
        trace=trace,
        device=None,
        rows=rows,
        kind=np.where(collective[rows], np.int8(COMMUNICATING), np.int8(COMPUTE)),
        launch=rows,
        own=self_times(np.where(working, around, NONE), c["start"], c["end"])[rows],
    )


OTHER = "other"
FORWARD, BACKWARD, GC = "forward", "backward", "gc"
# What our recorders, torchtitan ("fwd_bwd"), TorchRec ("## forward ##") and PyTorch itself call the parts of a step.
_PATTERNS = {
    FORWARD: r"^(#+ )?(fwd|forward)( #+)?$|\.forward$",
    BACKWARD: r"^(#+ )?(bwd|backward)( #+)?$|^autograd::engine::evaluate_function",
    "forward and backward": r"^fwd_bwd$",
    "optimizer": r"^(#+ )?optim(izer)?( #+)?$|^Optimizer\.step",
    "zero_grad": r"zero_grad",
    "data": r"data_?wait|data_?load|fetching_batch|^(#+ )?next_batch",
    "h2d": r"^h2d$|copy_batch_to_gpu",
    "grad_clip": r"grad_clip|clip_grad",
    "loss_sync": r"^loss_sync$|collect_dist_metrics",
    GC: r"^gc(_collect)?$",
    "checkpoint": r"ckpt_save|checkpoint_save",
    "eval": r"^(#+ )?eval",
    "log": r"^log$",
    "profiler": r"^(profiler|snapshot)$",
}
PHASE_NAMES = [*_PATTERNS, OTHER]
UNNAMED = PHASE_NAMES.index(OTHER)
HOST_PHASES = [
    name for name in _PATTERNS if name not in (FORWARD, BACKWARD, "forward and backward", "optimizer", "grad_clip")
]
"""The phases in which the host does work of its own, such as loading data, and launches no work of the model."""
PHASE_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _PATTERNS.items()}
_ANY_PHASE = re.compile("|".join(_PATTERNS.values()), re.IGNORECASE)


def phases(trace: Trace, parent: Column, lane: Column) -> Column:
    """Return the phase of each event, as an index into PHASE_NAMES.

    The phase comes from annotations: the innermost annotation with the name of a phase around the event decides. If no
    annotation of the trace denotes the forward pass, events without a phase count as forward up to the first backward
    operator of their step. `parent` has the row of the event directly around each event, `lane` the number of its
    thread or stream.
    """
    own = trace.text_values(phase_of)[trace.columns["name"]]
    annotates = (own < UNNAMED) & trace.category_matches(ANNOTATIONS) & trace.lane_is(HOST_LANE)[lane]
    around = innermost_selected(annotates, parent)
    phase = np.where(around >= 0, own[around], UNNAMED).astype(np.int8)
    return _infer_forward(trace, phase)


def phase_intervals(trace: Trace, names: Sequence[str]) -> tuple[Column, Column]:
    rows = trace.rows_named(names_in_phases(trace, names), ANNOTATIONS)
    return trace.columns["start"][rows], trace.columns["end"][rows]


def names_in_phases(trace: Trace, names: Sequence[str]) -> Mask:
    return np.isin(trace.text_values(phase_of), [PHASE_NAMES.index(name) for name in names])


def phase_of(name: str) -> int:
    if not _ANY_PHASE.search(name):  # so it is for nearly all of what may be a million names
        return UNNAMED
    return next(i for i, pattern in enumerate(PHASE_PATTERNS.values()) if pattern.search(name))


def _infer_forward(trace: Trace, phase: Column) -> Column:
    """Return the phase of each event, with "forward" for unnamed events before the backward pass of their step.

    `phase` has the phases so far. An event without a phase gets "forward" if it begins before the first backward
    operator of its step. The array `phase` itself is returned if some annotation already denotes the forward pass.
    """
    if FORWARD in {PHASE_NAMES[i] for i in distinct_values(phase)}:
        return phase
    start = trace.columns["start"]
    backward = np.sort(start[phase == PHASE_NAMES.index(BACKWARD)])
    for _, begin, end in trace.steps:
        first = np.searchsorted(backward, begin)
        if first < len(backward) and backward[first] < end:
            early = (start >= begin) & (start < backward[first]) & (phase == UNNAMED)
            phase = np.where(early, np.int8(PHASE_NAMES.index(FORWARD)), phase)
    return phase
