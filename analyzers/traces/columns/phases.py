"""The phase of a step that each event of the host belongs to, by what its annotations and operators are called."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.nesting import innermost_selected
from analyzers.traces.model import ANNOTATIONS, HOST_LANE, Trace
from analyzers.traces.reading.distinct import distinct_values

OTHER = "other"
FORWARD, BACKWARD, GC = "forward", "backward", "gc"
PATTERNS = {
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
PHASE_NAMES = [*PATTERNS, OTHER]
HOST_PHASES = [
    name for name in PATTERNS if name not in (FORWARD, BACKWARD, "forward and backward", "optimizer", "grad_clip")
]
"""Phases in which a host does something of its own."""
PHASE_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}


def phases(trace: Trace, parent: Column, lane: Column) -> Column:
    """The number in NAMES of each event's phase: that of the innermost event around it whose name tells one.

    What no name tells, and came before its step's first backward operator, is taken for forward.
    """
    by_name = np.array([phase_of(name) for name in trace.names] or [len(PHASE_PATTERNS)])
    told = by_name[trace.columns["name"]]
    on_host = np.array([one["kind"] == HOST_LANE for one in trace.columns.meta["lanes"]] or [False])[lane]
    marking = (told < len(PHASE_PATTERNS)) & trace.category_matches(ANNOTATIONS) & on_host
    around = innermost_selected(marking, parent)
    found = np.where(around >= 0, told[around], len(PHASE_PATTERNS)).astype(np.int8)
    return mark_forward(trace, found)


def phase_intervals(trace: Trace, names: Sequence[str]) -> tuple[Column, Column]:
    """(start, end) of the annotations that stand for one of these phases."""
    rows = np.flatnonzero(names_in_phases(trace, names)[trace.columns["name"]] & trace.category_matches(ANNOTATIONS))
    return trace.columns["start"][rows], trace.columns["end"][rows]


def names_in_phases(trace: Trace, names: Sequence[str]) -> Column:
    """A flag for each text of the trace: does it stand for one of these phases?"""
    wanted = {PHASE_NAMES.index(name) for name in names}
    return np.array([phase_of(name) in wanted for name in trace.names] or [False])


@lru_cache(maxsize=1 << 14)
def phase_of(name: str) -> int:
    return next((i for i, pattern in enumerate(PHASE_PATTERNS.values()) if pattern.search(name)), len(PHASE_PATTERNS))


def mark_forward(trace: Trace, phase: Column) -> Column:
    if FORWARD in {PHASE_NAMES[i] for i in distinct_values(phase)}:
        return phase
    start, backward = trace.columns["start"], PHASE_NAMES.index(BACKWARD)
    first_backward = np.sort(start[phase == backward])
    for _, begin, end in trace.steps:
        place = np.searchsorted(first_backward, begin)
        if place < len(first_backward) and first_backward[place] < end:
            early = (start >= begin) & (start < first_backward[place]) & (phase == PHASE_NAMES.index(OTHER))
            phase = np.where(early, PHASE_NAMES.index(FORWARD), phase)
    return phase
