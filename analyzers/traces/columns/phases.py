"""The phase of a step that each event of the host belongs to, by what its annotations and operators are called."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.nesting import innermost
from analyzers.traces.model import ANNOTATIONS, HOST_LANE, Trace
from analyzers.traces.reading.distinct import distinct

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
NAMES = [*PATTERNS, OTHER]
OF_HOST = [
    name for name in PATTERNS if name not in (FORWARD, BACKWARD, "forward and backward", "optimizer", "grad_clip")
]
"""Phases in which a host does something of its own."""
MATCHING = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}


def phases(trace: Trace, parent: Column, lane: Column) -> Column:
    """The number in NAMES of each event's phase: that of the innermost event around it whose name tells one.

    What no name tells, and came before its step's first backward operator, is taken for forward.
    """
    by_name = np.array([phase_of(name) for name in trace.names] or [len(MATCHING)])
    told = by_name[trace.columns["name"]]
    on_host = np.array([one["kind"] == HOST_LANE for one in trace.columns.meta["lanes"]] or [False])[lane]
    marking = (told < len(MATCHING)) & trace.of_cat(ANNOTATIONS) & on_host
    around = innermost(marking, parent)
    found = np.where(around >= 0, told[around], len(MATCHING)).astype(np.int8)
    return before_backward(trace, found)


def marks(trace: Trace, names: Sequence[str]) -> tuple[Column, Column]:
    """(start, end) of the annotations that stand for one of these phases."""
    rows = np.flatnonzero(phase_of_names(trace, names)[trace.columns["name"]] & trace.of_cat(ANNOTATIONS))
    return trace.columns["start"][rows], trace.columns["end"][rows]


def phase_of_names(trace: Trace, names: Sequence[str]) -> Column:
    """A flag for each text of the trace: does it stand for one of these phases?"""
    wanted = {NAMES.index(name) for name in names}
    return np.array([phase_of(name) in wanted for name in trace.names] or [False])


@lru_cache(maxsize=1 << 14)
def phase_of(name: str) -> int:
    return next((i for i, pattern in enumerate(MATCHING.values()) if pattern.search(name)), len(MATCHING))


def before_backward(trace: Trace, phase: Column) -> Column:
    if FORWARD in {NAMES[i] for i in distinct(phase)}:
        return phase
    start, backward = trace.columns["start"], NAMES.index(BACKWARD)
    first_backward = np.sort(start[phase == backward])
    for _, begin, end in trace.steps:
        place = np.searchsorted(first_backward, begin)
        if place < len(first_backward) and first_backward[place] < end:
            early = (start >= begin) & (start < first_backward[place]) & (phase == NAMES.index(OTHER))
            phase = np.where(early, NAMES.index(FORWARD), phase)
    return phase
