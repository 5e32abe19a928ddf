"""The window that charts share: a stretch of steps, which each chart finds on its own axis.

In the address `steps=5-7` is all of steps 5, 6 and 7; `steps=5.25-6.7` begins and ends inside of one. `from` and `to`
are the same on the axis of the page itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

STEPS = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:\s*(?:-|to)\s*(\d{1,9}(?:\.\d{1,6})?))?")
NEAR = 5e-4
"""Nearer than that to a whole step is that step: pixels are no finer."""
OWN = ("from", "to", "steps")
"""What of an address tells the window."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Window:
    """What a page shows: `span` on its own axis, `steps` for the others; None: all, or that nothing tells."""

    span: tuple[int, int] | None = None
    steps: Span | None = None

    def told(self) -> dict[str, Any]:
        """For the browser: what belongs into the address of this page, and into those of others."""
        steps = {"steps": written(self.steps)} if self.steps else {}
        own = {"from": str(self.span[0]), "to": str(self.span[1])} if self.span else {}
        return {"own": own | steps, "steps": steps.get("steps", "")}


@dataclass(frozen=True)
class StepMarks:
    """Where steps lie on an axis, as points of a line between which both pass evenly."""

    at: Any
    steps: Any

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "StepMarks":
        """From a `clock` of a room: positions, then steps."""
        at, steps = (frame.iloc[:, i].to_numpy(float) for i in (0, 1))
        return cls(at, steps)

    def to_steps(self, at: Any) -> Any:
        """Positions on the axis as steps."""
        return np.interp(at, self.at, self.steps)

    def to_axis(self, steps: Any) -> Any:
        """Steps as positions on the axis."""
        return np.interp(steps, self.steps, self.at)

    def within(self, span: Span) -> Span | None:
        """The steps of a stretch of the axis; None where no step is."""
        if not len(self.at) or span[1] <= self.at[0] or span[0] >= self.at[-1]:
            return None
        low, high = self.to_steps(span)
        return (float(low), float(high)) if high - low > NEAR else None

    def place(self, steps: Span) -> tuple[int, int] | None:
        """The stretch of the axis that some steps take; None where they are not on it."""
        if not len(self.at) or steps[1] <= self.steps[0] or steps[0] >= self.steps[-1]:
            return None
        low, high = self.to_axis(steps)
        return int(low), max(int(low) + 1, int(np.ceil(high)))

    def begins(self) -> list[tuple[int, float]]:
        """Each step that begins on the axis, and where: one of which more than its begin is known."""
        number, following = np.floor(self.steps[:-1]), self.steps[1:]
        inside = np.flatnonzero((following > self.steps[:-1]) & (following <= number + 1))
        _, first = np.unique(number[inside], return_index=True)
        return [(int(number[i]), float(self.at[i])) for i in inside[first]]


def window_of(query: dict[str, str], span: tuple[int, int] | None, marks: StepMarks) -> Window:
    """The window that an address asks for: by the page's own axis, else by steps."""
    if span:
        return Window(span, marks.within(span))
    steps = read(query.get("steps", ""))
    return Window(marks.place(steps) if steps else None, steps)


def without_window(query: Mapping[str, str]) -> dict[str, str]:
    """A query but for its window."""
    return {name: value for name, value in query.items() if name not in OWN}


def kept(query: dict[str, str], shown: dict[str, Any]) -> dict[str, str]:
    """A query with the window that is in sight: a zoom is written into the address bar behind the back of Dash, whose
    own idea of the address is that of before.
    """
    own: dict[str, str] = shown["own"]
    return without_window(query) | own


def read(text: str) -> Span | None:
    """`5`, `5-7` or `5.25-6.7`; None of anything else. An end without a fraction is that whole step's."""
    found = STEPS.fullmatch(text.strip())
    if not found:
        return None
    last = found[2] or found[1]
    low, high = float(found[1]), float(last) if "." in last else float(last) + 1
    return (low, high) if low < high else None


def written(steps: Span) -> str:
    """As `read` takes it."""
    low, high = steps
    first = f"{low:.3f}".rstrip("0").rstrip(".")
    last = f"{round(high) - 1}" if abs(high - round(high)) < NEAR and round(high) > low else f"{high:.3f}"
    return first if first == last else f"{first}-{last}"
