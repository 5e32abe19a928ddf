"""The chart of memory over the trace entries of a snapshot, coloured by category, pool, stream, phase or rank."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd

from analyzers.memory import Device, MemoryData, latest, views
from analyzers.run import Artefact
from analyzers.store import Options
from workbench.web.components.figure import FigurePart
from workbench.web.components.memory import TimelineAxis, rank_lines, timeline
from workbench.web.query import MemoryQuery
from workbench.web.served_run import ServedRun
from workbench.web.step_window import memory_marks
from workbench.web.theme import theme

BUCKETS = 600
"""The most points of the timeline: half of a screen's columns, because browsers draw slowly; no peak is lost."""
_RANK_BUCKETS, _RANKS = 400, 16
_NUMBERS = ("entry", "time_us", "allocated", "reserved", "pending", "oom")
"""The columns of a timeline that are not parts of the allocated bytes."""

_NOWHERE = -9.0
"""A position far left of the axis, where no cursor is drawn."""
_NO_HISTORY = "the moment of the snapshot, which has no history (torch.cuda.memory._record_memory_history records one)"

Entries = tuple[int, int]


def chart(served: ServedRun, device: Device, at: MemoryQuery, span: Entries | None) -> FigurePart:
    """Return the memory timeline of the trace entries in `span`, or of all entries if `span` is None."""
    if not device.entries:
        return moment(served, device)
    axis = timeline_axis(served, device, at)
    frame = views.timeline(served.snapshot(device.path), served.options, device.device, BUCKETS, span)
    frame = frame.assign(x=axis.positions(frame["entry"]))
    first, last = span or (0, device.entries)
    started = {step: entry for step, entry in memory_marks(served, device).starts() if first <= entry < last}
    starts = [*zip(started, axis.positions(started.values()), strict=True)]
    [cursor] = axis.positions([at.entry])
    if at.colour == "rank":
        others = other_ranks(served, device, (first, last))
        placed = {name: other.assign(x=axis.positions(other["entry"])) for name, other in others.items()}
        return rank_lines(frame, placed, starts, cursor, axis)
    if at.colour == "category":
        return timeline(frame, theme().categories, starts, cursor, axis)
    parts = _bytes_by(served, device, at.colour, span)
    layers = frame[["entry", "x", "allocated", "oom"]].assign(**parts)
    return timeline(layers, {title: theme().nth(i) for i, title in enumerate(parts)}, starts, cursor, axis)


def moment(served: ServedRun, device: Device) -> FigurePart:
    """Return a chart of a snapshot without trace entries: the memory at one instant, as horizontal layers."""
    frame = views.timeline(served.snapshot(device.path), served.options, device.device).iloc[[0, 0]]
    figure = timeline(frame.assign(x=[0.0, 1.0]), theme().categories, [], _NOWHERE, TimelineAxis(np.zeros(0, int)))
    layout = figure["layout"]
    assert isinstance(layout, dict)
    axis = {"title": {"text": _NO_HISTORY, "standoff": 8}, "showticklabels": False, "ticks": "", "fixedrange": True}
    return {**figure, "layout": {**layout, "xaxis": axis, "annotations": []}}


def timeline_axis(served: ServedRun, device: Device, at: MemoryQuery) -> TimelineAxis:
    """Return the axis that the page's address selects: time (if the trace has times) or trace entries."""
    artefact = served.snapshot(device.path)
    return _time_axis(artefact, served.options, device.device) if at.axis == "time" else TimelineAxis(np.zeros(0, int))


# Eight bytes for each entry of the trace.
@lru_cache(4)
def _time_axis(artefact: Artefact, options: Options, device: int) -> TimelineAxis:
    return TimelineAxis(views.times(artefact, options, device))


def last_steps(served: ServedRun, device: Device, steps: int) -> Entries | None:
    """Return the trace entries from the start of the last `steps` steps to the end of the trace.

    The last of these steps is the one in which an allocation failed. Return None if no allocation failed, or if the
    trace has not more than `steps` steps up to the failure.
    """
    if device.oom is None:
        return None
    starts = [int(entry) for _, entry in memory_marks(served, device).starts() if entry <= device.oom.index]
    return (starts[-steps], device.entries) if len(starts) > steps else None


def _bytes_by(served: ServedRun, device: Device, colour: str, span: Entries | None) -> "Mapping[str, pd.Series[int]]":
    frame = views.timeline_by(served.snapshot(device.path), served.options, device.device, colour, BUCKETS, span)
    names = [str(name) for name in frame if name not in _NUMBERS]
    return {f"{colour} {name}" if name[:1].isdigit() else name: frame[name] for name in names}


def other_ranks(served: ServedRun, device: Device, span: Entries) -> dict[str, pd.DataFrame]:
    """Return {name of another rank: its memory timeline} for the training steps in `span`.

    `span` is a range of trace entries of this device. The timelines of other ranks are shifted so that their steps
    start at the same positions of the axis as the steps of this device.
    """
    mine, found = memory_marks(served, device), dict[str, pd.DataFrame]()
    steps = mine.steps_within(span)
    for other in latest(data.devices)[: _RANKS + 1] if (data := served.data(MemoryData)) else ():
        theirs = memory_marks(served, other)
        window = theirs.span_of(steps) if steps else None
        # This device is drawn in front already; a rank without these steps has nothing to compare.
        if (other.rank, other.device) == (device.rank, device.device) or window is None:
            continue
        frame = views.timeline(served.snapshot(other.path), served.options, other.device, _RANK_BUCKETS, window)
        found[f"rank {other.rank}"] = frame.assign(entry=mine.to_positions(theirs.to_steps(frame["entry"])))
    return found
