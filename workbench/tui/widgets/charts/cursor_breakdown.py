"""What is under the cursor of a chart, part by part."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.text import Text
from textual.widgets import Static

from analyzers.words import share
from workbench.console import clean
from workbench.present.bar import bar

WIDE = 110
"""Columns of the screen from which on there is room for them beside the chart."""
SLIGHT = 0.005


class Part(NamedTuple):
    """A piece of a whole, in the unit of the whole."""

    name: str
    value: float
    colour: str


class Parts(Static):
    """Beside the chart a bar and numbers each, the largest first; below it, on a narrow screen, a line or two."""

    def show(self, head: str, parts: Sequence[Part], told: Callable[[float], str]) -> None:
        """Tell other parts; `told` writes a value with its unit. What holds nothing is left out."""
        ranked = sorted((part for part in parts if part.value > 0), key=lambda part: -part.value)
        lay_out = beside if self.app.size.width >= WIDE else below
        self.update(lay_out(Text(head, style="bold"), ranked, told))


def beside(head: Text, parts: Sequence[Part], told: Callable[[float], str]) -> Text:
    total = sum(part.value for part in parts)
    lines = (
        Text.assemble(
            f"{clean(part.name)[:15]:<16}",
            (bar(part.value, total, 10).ljust(10), part.colour),
            f" {told(part.value):>10} {share(part.value, total):>7}",
        )
        for part in parts
    )
    return Text("\n").join([head, *lines])


def below(head: Text, parts: Sequence[Part], told: Callable[[float], str]) -> Text:
    """Without what is too small to matter where there is little room."""
    total = sum(part.value for part in parts)
    pieces = (
        Text.assemble(("█", part.colour), f" {clean(part.name)} {told(part.value)}".replace(" ", "\N{NO-BREAK SPACE}"))
        for part in parts
        if part.value >= SLIGHT * total
    )
    return Text("  ").join([head, *pieces])
