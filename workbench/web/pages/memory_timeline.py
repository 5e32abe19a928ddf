"""Memory over the entries of a trace, in the colours of what is asked for."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyzers.memory import latest, views
from analyzers.run import Artefact
from workbench.colours import CATEGORIES, nth_colour
from workbench.web.components.memory import rank_lines, timeline
from workbench.web.served_run import COLOURS, Instant, ServedRun
from workbench.web.step_marks import memory_marks

__all__ = ["COLOURS", "chart", "snapshot"]
BUCKETS = 600
"""Half as many as a screen has columns: a browser draws each several times, and no peak is lost."""
RANK_BUCKETS, RANKS = 400, 16
NUMBERS = ("entry", "time_us", "allocated", "reserved", "pending", "oom")
"""Columns of a timeline that are no part of what is allocated."""

Entries = tuple[int, int]


def snapshot(served: ServedRun, device: Any) -> Artefact:
    artefact = served.snapshot(device.path)
    assert artefact is not None, "a device of the report comes from a file of the run"
    return artefact


def chart(served: ServedRun, device: Any, at: Instant, span: Entries | None) -> dict[str, Any]:
    """The reduced timeline of a window of entries, or of all."""
    frame = views.timeline(snapshot(served, device), served.options, device.device, BUCKETS, span)
    first, last = span or (0, device.entries)
    begins = [(step, entry) for step, entry in memory_marks(served, device).begins() if first <= entry < last]
    if at.colour == "rank":
        return rank_lines(frame, others(served, device, (first, last)), begins, at.entry)
    if at.colour == "category":
        return timeline(frame, CATEGORIES, begins, at.entry)
    parts = coloured(served, device, at.colour, span)
    layers = frame[["entry", "allocated", "oom"]].assign(**parts)
    return timeline(layers, {title: nth_colour(i) for i, title in enumerate(parts)}, begins, at.entry)


def coloured(served: ServedRun, device: Any, colour: str, span: Entries | None) -> Mapping[str, "pd.Series[int]"]:
    """What is stacked, by its title: the bytes of each pool, stream, or phase of the step that allocated them."""
    frame = views.timeline_by(snapshot(served, device), served.options, device.device, colour, BUCKETS, span)
    names = [str(name) for name in frame if name not in NUMBERS]
    return {f"{colour} {name}" if name[:1].isdigit() else name: frame[name] for name in names}


def others(served: ServedRun, device: Any, span: Entries) -> dict[str, pd.DataFrame]:
    """What the other ranks had allocated, at the entries of this device that lie at the same place of the same step."""
    mine, found = memory_marks(served, device), dict[str, pd.DataFrame]()
    steps = mine.within(span)
    for one in latest(served.parts["memory"].devices)[: RANKS + 1]:
        theirs = memory_marks(served, one)
        window = theirs.place(steps) if steps else None
        if (one.rank, one.device) == (device.rank, device.device) or window is None:
            continue
        frame = views.timeline(snapshot(served, one), served.options, one.device, RANK_BUCKETS, window)
        found[f"rank {one.rank}"] = frame.assign(entry=mine.to_axis(theirs.to_steps(frame["entry"])))
    return found
