"""A list next to or below a chart, with the parts of the value at the cursor, such as bytes by category."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text
from textual.widgets import Static

from analyzers.words import share
from workbench.console import clean
from workbench.present.sparkline import bar
from workbench.tui.widgets.common import wrapped

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
