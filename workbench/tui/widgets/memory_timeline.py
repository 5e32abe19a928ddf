"""A chart of memory over time in stacked layers (category, pool, stream or phase).

The peak and failed allocations are marked.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Unpack

import numpy as np
import pandas as pd
from rich.text import Text
from textual.widgets import Static

from analyzers.words import share, size
from workbench.colours import CATEGORIES, nth_colour
from workbench.console import clean
from workbench.present.figure import bar
from workbench.tui.widgets.axes import Unit, round_distance
from workbench.tui.widgets.common import WidgetOptions, wrapped
from workbench.tui.widgets.stacked_chart import FAILURE, StackedChart

_TICK_COLUMNS = 7
"""The columns of a chart for the label of each step."""


class StepStart(NamedTuple):
    step: int
    entry: int


class MemoryTimeline(StackedChart):
    """A chart of memory by category over trace entries, as `memory.views.timeline` returns it."""

    UNIT: ClassVar[Unit] = Unit.BYTES

    def __init__(self, **options: Unpack[WidgetOptions]) -> None:
        super().__init__(**options)
        self.steps: Sequence[StepStart] = ()

    def show(self, frame: pd.DataFrame, steps: Sequence[StepStart] = ()) -> None:
        """Draw a timeline; the cursor starts at the last failed allocation, or else at the peak."""
        self.steps = steps
        self.draw(frame, CATEGORIES, "allocated")
        self.cursor = max(self.failed, default=self.cursor)

    @property
    def failed(self) -> list[int]:
        return [int(row) for row in np.flatnonzero(self.instants["oom"].to_numpy())]

    def entry_at_cursor(self) -> int | None:
        return int(self.instants["entry"].iloc[self.cursor]) if 0 <= self.cursor < len(self.instants) else None

    def step_at_cursor(self) -> int:
        entry = self.entry_at_cursor() or 0
        return max((index for index, step in enumerate(self.steps) if step.entry <= entry), default=0)

    def go_to_step(self, index: int) -> None:
        row = int(np.searchsorted(self.instants["entry"].to_numpy(), self.steps[index].entry))
        self.cursor = min(row, len(self.instants) - 1)

    def signs(self) -> dict[int, str]:
        """Return the marks above the chart as {index of a table row: sign}.

        They are `▼` over the peak and `✗` over failed allocations.
        """
        return {self.highest: "▼"} | dict.fromkeys(self.failed, FAILURE)

    def value_text(self, value: float) -> str:
        return size(int(value))

    def ticks(self) -> dict[int, str]:
        """Return the labels of the steps below the chart as {index of a table row: label}.

        The first row shows the step that is running there, even if that step began earlier. If there are many steps,
        only those with round numbers have labels.
        """
        entries = self.instants["entry"].to_numpy()
        rows = [(int(np.searchsorted(entries, entry)), step) for step, entry in self.steps]
        shown = {step: row for row, step in rows if 0 < row < len(entries)}
        begun = [step for row, step in rows if row == 0][-1:]
        first = (begun or list(shown))[:1]
        apart = round_distance((len(shown) or 1) / max(1, self.starts[-1] // _TICK_COLUMNS))
        labels = {0 if begun else shown[step]: f"step {step}" for step in first}
        for step, row in shown.items():
            if step % max(1, int(apart)) == 0:
                labels.setdefault(row, str(step))
        return labels

    def ruler(self) -> Sequence[str]:
        first, last = int(self.instants["entry"].iloc[0]), int(self.instants["entry"].iloc[-1])
        peak = f"▼ peak {size(int(self.instants['allocated'].max()))}"
        failed = [f"{FAILURE} allocation failed"] if self.failed else []
        return [peak, *failed, f"entry {first} … {last}"]


class AllocatedByTimeline(StackedChart):
    """A chart of allocated memory by pool, stream or phase, as `memory.views.timeline_by` returns it."""

    UNIT: ClassVar[Unit] = Unit.BYTES

    def show(self, frame: pd.DataFrame) -> None:
        names = [str(name) for name in frame.columns if name not in ("entry", "time_us", "allocated")]
        self.draw(frame, {name: nth_colour(number) for number, name in enumerate(names)}, "allocated")

    def signs(self) -> dict[int, str]:
        """Return the mark above the chart as {index of a table row: sign}: `▼` over the peak."""
        return {self.highest: "▼"}

    def value_text(self, value: float) -> str:
        return size(int(value))

    def ruler(self) -> Sequence[str]:
        """Return the parts of the text below the chart: the bytes of each pool, stream or phase at the cursor.

        The lowest layer comes first. A pool or stream has a number as its name, so a colon separates it from the bytes.
        """
        row = self.instants.iloc[max(0, self.cursor)]
        parts = (f"{clean(name)}: {size(int(row[name]))}" for name in self.names)
        return [f"entry {int(row['entry'])}", f"{size(int(row['allocated']))} allocated", *parts]


WIDE = 110
"""The screen width, in columns, from which on the parts are listed next to the chart."""
SMALLEST_SHARE = 0.005


class Part(NamedTuple):
    """A part of a total, such as a category of memory: its name, its colour, and its value in the unit of the total."""

    name: str
    value: float
    colour: str


class CursorBreakdown(Static):
    """The parts of the value at a chart's cursor, largest first; on a narrow screen they are below the chart."""

    def show(self, head: str, parts: Sequence[Part], written: Callable[[float], str]) -> None:
        """Show the heading `head` and all parts that are not zero; `written` formats a value with its unit."""
        ranked = sorted((part for part in parts if part.value > 0), key=lambda part: -part.value)
        title = Text(head, style="bold")
        if self.app.size.width >= WIDE:
            self.update(beside(title, ranked, written))
        else:
            self.update(below(title, ranked, written, self.size.width or self.app.size.width - 2))


def beside(head: Text, parts: Sequence[Part], written: Callable[[float], str]) -> Text:
    """Return a heading and a line for each part: name, bar, value and share."""
    total = sum(part.value for part in parts)
    lines = (
        Text.assemble(
            f"{clean(part.name)[:15]:<16}",
            (bar(part.value, total, 10).ljust(10), part.colour),
            f" {written(part.value):>10} {share(part.value, total):>7}",
        )
        for part in parts
    )
    return Text("\n").join([head, *lines])


def below(head: Text, parts: Sequence[Part], written: Callable[[float], str], width: int) -> Text:
    """Return the parts as a legend below the chart, in lines of `width` characters.

    The heading `head` comes first, then colour, name and value of each part; `written` formats a value.
    """
    total = sum(part.value for part in parts)
    pieces = (
        Text.assemble(("█", part.colour), f" {clean(part.name)} {written(part.value)}")
        for part in parts
        if part.value >= SMALLEST_SHARE * total
    )
    return wrapped([head, *pieces], width)
