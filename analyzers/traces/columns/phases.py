"""Find the phase of a step (forward, backward, data ...) for each event of the host, from the names of annotations."""

import re
from collections.abc import Sequence

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.traces.columns.nesting import innermost_selected
from analyzers.traces.reading.distinct import distinct_values
from analyzers.traces.reading.trace import ANNOTATIONS, HOST_LANE, Trace

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
    """Return the starts and ends (ns of the trace) of the annotations that denote one of the phases `names`."""
    rows = trace.rows_named(names_in_phases(trace, names), ANNOTATIONS)
    return trace.columns["start"][rows], trace.columns["end"][rows]


def names_in_phases(trace: Trace, names: Sequence[str]) -> Mask:
    """Return a mask of the texts in `trace.names` that denote one of the phases `names`."""
    return np.isin(trace.text_values(phase_of), [PHASE_NAMES.index(name) for name in names])


def phase_of(name: str) -> int:
    """Return the phase that an annotation's name denotes, as an index into PHASE_NAMES; UNNAMED if it denotes none."""
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
