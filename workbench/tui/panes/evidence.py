"""What is alive at one instant of a snapshot, in four readings: stacks, tree, blocks, ranks."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ContentSwitcher, Static

from analyzers.errors import WorkbenchError
from analyzers.memory import ranks, views
from analyzers.run import Artefact
from analyzers.store import Options
from workbench.palette import CATEGORIES
from workbench.present.table import Table, table
from workbench.present.units import size
from workbench.tui.widgets.blocks import BlockMap
from workbench.tui.widgets.holders import Holders
from workbench.tui.widgets.tables import Grid

READINGS = ("stacks", "tree", "blocks", "ranks")
GROUPINGS = ("module", "line", "stack", "category")


@dataclass(frozen=True)
class Instant:
    """After which entry of which device of which snapshot."""

    artefact: Artefact
    device: int
    entry: int


class Evidence(Vertical):
    """The pane around it owns the keys; what is asked is asked off the event loop."""

    def __init__(self, devices: list[Any], options: Options, **named: Any) -> None:
        super().__init__(**named)
        self._devices, self._options = devices, options
        self._reading, self._grouping = READINGS[0], GROUPINGS[0]
        self._instant: Instant | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="evidence-title")
        with ContentSwitcher(initial=READINGS[0]):
            yield Grid(id="stacks")
            yield Holders(id="tree")
            yield BlockMap(id="blocks")
            yield Grid(matrix(self._devices), id="ranks")

    def look_at(self, instant: Instant) -> None:
        """Show what is alive then."""
        if instant != self._instant:
            self._instant = instant
            self._load()

    def turn(self, by: int) -> None:
        """Show the next reading, or the one before."""
        self.turn_to(READINGS[(READINGS.index(self._reading) + by) % len(READINGS)])

    def turn_to(self, reading: str) -> None:
        """Show a reading and, if another had them, give it the keys."""
        had_focus = self.has_focus_within
        self._reading = self.query_one(ContentSwitcher).current = reading
        if had_focus:
            self.query_one(f"#{reading}").focus()
        self._load()

    def regroup(self) -> None:
        """Group the tree by the next of `GROUPINGS`."""
        self._grouping = GROUPINGS[(GROUPINGS.index(self._grouping) + 1) % len(GROUPINGS)]
        self.turn_to("tree")

    @work(thread=True, exclusive=True, group="evidence")
    def _load(self) -> None:
        if self._instant is None:
            return
        try:
            found = self._ask(self._reading, self._instant)
        except WorkbenchError as error:
            self.app.call_from_thread(self.notify, error.message, severity="error", markup=False)
            return
        self.app.call_from_thread(self._show, self._reading, found)

    def _ask(self, reading: str, at: Instant) -> Any:
        if reading == "stacks":
            return stacks(views.top_stacks(at.artefact, self._options, at.device, at.entry))
        if reading == "tree":
            return views.tree(at.artefact, self._options, at.device, by=self._grouping, entry=at.entry)
        if reading == "blocks":
            return (
                views.segments(at.artefact, at.entry, self._options, at.device),
                views.state(at.artefact, at.entry, self._options, at.device),
            )
        return None

    def _show(self, reading: str, found: Any) -> None:
        self.query_one("#evidence-title", Static).update(self._title(reading))
        if reading == "stacks":
            self.query_one("#stacks", Grid).show(found)
        elif reading == "tree":
            self.query_one(Holders).show(found)
        elif reading == "blocks":
            self.query_one(BlockMap).show(*found)

    def _title(self, reading: str) -> Text:
        assert self._instant is not None, "there is nothing to show before the first instant"
        about = {
            "stacks": "largest stacks",
            "tree": f"tree by {self._grouping}",
            "blocks": "segments and blocks",
            "ranks": "bytes at the peak of each rank's last snapshot",
        }
        when = "" if reading == "ranks" else f" after entry {self._instant.entry}"
        return Text.assemble((f"{about[reading]}{when}", "bold"), ("   v: next reading", "dim"))


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
