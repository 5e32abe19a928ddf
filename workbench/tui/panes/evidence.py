"""What is alive at one instant of a snapshot, in several readings."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from textual.widget import Widget

from analyzers.memory import ranks, views
from analyzers.run import Artefact
from analyzers.store import Options
from workbench.palette import CATEGORIES
from workbench.present.table import Table, table
from workbench.present.units import size
from workbench.tui.widgets.blocks import BlockMap
from workbench.tui.widgets.holders import Holders
from workbench.tui.widgets.readings import Readings
from workbench.tui.widgets.tables import Grid

TITLES = {
    "stacks": "largest stacks",
    "tree": "tree by",
    "blocks": "segments and blocks",
    "ranks": "bytes at the peak of each rank's last snapshot",
}
GROUPINGS = ("module", "line", "stack", "category")


@dataclass(frozen=True)
class Instant:
    """After which entry of which device of which snapshot."""

    artefact: Artefact
    device: int
    entry: int


class Evidence(Readings):
    """The pane around it owns the keys."""

    def __init__(self, devices: list[Any], options: Options, **named: Any) -> None:
        super().__init__(TITLES, **named)
        self._devices, self._options = devices, options
        self._grouping = GROUPINGS[0]
        self._instant: Instant | None = None

    def widgets(self) -> Iterable[Widget]:
        """Stacks, tree, blocks, ranks."""
        yield Grid(id="stacks")
        yield Holders(id="tree")
        yield BlockMap(id="blocks")
        yield Grid(matrix(self._devices), id="ranks")

    def look_at(self, instant: Instant) -> None:
        """Show what is alive then."""
        if instant != self._instant:
            self._instant = instant
            self.load()

    def regroup(self) -> None:
        """Group the tree by the next of `GROUPINGS`."""
        self._grouping = GROUPINGS[(GROUPINGS.index(self._grouping) + 1) % len(GROUPINGS)]
        self.turn_to("tree")

    def ask(self, reading: str) -> tuple[Any, ...] | None:
        """Look up what was alive at the instant."""
        at = self._instant
        if at is None:
            return None
        if reading == "stacks":
            return (stacks(views.top_stacks(at.artefact, self._options, at.device, at.entry)),)
        if reading == "tree":
            return (views.tree(at.artefact, self._options, at.device, by=self._grouping, entry=at.entry),)
        if reading == "blocks":
            return (
                views.segments(at.artefact, at.entry, self._options, at.device),
                views.state(at.artefact, at.entry, self._options, at.device),
            )
        return None

    def title(self) -> str:
        """What is in sight, and of when."""
        by = f" {self._grouping}" if self.reading == "tree" else ""
        when = "" if self.reading == "ranks" or self._instant is None else f" after entry {self._instant.entry}"
        return f"{super().title()}{by}{when}"


def stacks(frame: pd.DataFrame) -> Table:
    """The largest stacks as a table of text."""
    columns = (frame[name] for name in ("bytes", "count", "category", "label", "frames"))
    rows = (
        (size(held), blocks, category, label or "-", next(iter(frames), "no stack recorded"))
        for held, blocks, category, label, frames in zip(*columns, strict=True)
    )
    return table("", "bytes> | blocks> | category | of | innermost line", rows, limit=50)


def matrix(devices: list[Any]) -> Table:
    """Bytes by rank and category, only categories that somebody holds."""
    frame = ranks.matrix(devices)
    held = [name for name in CATEGORIES if frame[name].any()]
    heads = " | ".join(["rank>", "device>", "step>", "peak>", *(f"{name.replace('_', ' ')}>" for name in held)])
    rows = (
        (row["rank"], row["device"], row["step"], size(int(row["peak"])), *(size(int(row[name])) for name in held))
        for _, row in frame.iterrows()
    )
    return table("", heads, rows, limit=len(frame))
