"""The range of steps that applies to all charts, and its position on the axis of each chart.

In the address, `steps=5-7` means all of steps 5, 6 and 7; `steps=5.25-6.7` starts and ends inside a step. `from` and
`to` are the same range in the unit of the page's own axis: trace entries or nanoseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pandas as pd

from analyzers.columns import Floats
from workbench.web.gestures import Span
from workbench.web.query import Query

# Digits are limited, as the field takes whatever is typed or pasted.
STEPS = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:\s*(?:-|to)\s*(\d{1,9}(?:\.\d{1,6})?))?")
NEAR = 5e-4
"""A position closer than that to a whole step is that step: pixels are no finer."""
WINDOW_NAMES = ("from", "to", "steps")
"""The names in a query that describe the window."""


class WindowState(TypedDict):
    """The selected range as the browser stores it.

    `own` goes into the URL of this page, `steps` into links to other pages.
    """

    own: dict[str, str]
    steps: str


@dataclass(frozen=True)
class Window:
    """The range that a page shows: `span` on its own axis, and `steps` for other pages; None means all, or unknown."""

    span: tuple[int, int] | None = None
    steps: Span | None = None

    def state(self) -> WindowState:
        """Return the range as the browser stores it."""
        steps = {"steps": steps_text(self.steps)} if self.steps else {}
        own = {"from": str(self.span[0]), "to": str(self.span[1])} if self.span else {}
        return {"own": own | steps, "steps": steps.get("steps", "")}


@dataclass(frozen=True)
class StepMarks:
    """Pairs of a position on an axis and the step (a fractional number) at that position, both increasing.

    Between two pairs, positions and steps are interpolated.
    """

    positions: Floats
    steps: Floats

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "StepMarks":
        """Return the marks in a table whose first column has positions on the axis, and whose second has the steps
        there.
        """
        positions, steps = (frame.iloc[:, i].to_numpy(float) for i in (0, 1))
        return cls(positions, steps)

    def to_steps(self, positions: "Floats | pd.Series[int]") -> Floats:
        """Return the steps at these positions on the axis, as fractional numbers."""
        at: Floats = np.asarray(positions, float)
        return np.interp(at, self.positions, self.steps)

    def to_positions(self, steps: Floats) -> Floats:
        """Return the positions of these steps on the axis."""
        return np.interp(steps, self.steps, self.positions)

    def steps_within(self, span: Span) -> Span | None:
        """Return the range of steps in a range of the axis; None if it contains no step."""
        if not len(self.positions) or span[1] <= self.positions[0] or span[0] >= self.positions[-1]:
            return None
        low, high = self.to_steps(np.array(span)).tolist()
        return (low, high) if high - low > NEAR else None

    def span_of(self, steps: Span) -> tuple[int, int] | None:
        """Return the range of the axis that these steps cover; None if they are outside the axis."""
        if not len(self.positions) or steps[1] <= self.steps[0] or steps[0] >= self.steps[-1]:
            return None
        low, high = self.to_positions(np.array(steps)).tolist()
        # At least one position wide: a step shorter than one entry must still be visible.
        return int(low), max(int(low) + 1, int(np.ceil(high)))

    def starts(self) -> list[tuple[int, float]]:
        """Return (step, position) of each step that starts on the axis; steps with an unknown end are left out."""
        # A mark at a fraction of a step lies inside it; only whole numbers are starts.
        number, following = np.floor(self.steps[:-1]), self.steps[1:]
        inside = np.flatnonzero((following > self.steps[:-1]) & (following <= number + 1))
        _, first = np.unique(number[inside], return_index=True)
        return [(int(number[i]), float(self.positions[i])) for i in inside[first]]


def window_of(query: Query, span: tuple[int, int] | None, marks: StepMarks) -> Window:
    """Return the range that an address selects: `span` on the page's own axis if given, else the steps in the query."""
    if span:
        return Window(span, marks.steps_within(span))
    steps = parse_steps(query.get("steps", ""))
    return Window(marks.span_of(steps) if steps else None, steps)


def without_window(query: Mapping[str, str]) -> Query:
    """Return a query without the parameters that select a range."""
    return {name: value for name, value in query.items() if name not in WINDOW_NAMES}


def own_window(query: Mapping[str, str]) -> Query:
    """Return only the parameters of a query that select a range on the page's own axis."""
    return {name: value for name, value in query.items() if name in WINDOW_NAMES}


def with_window(query: Query, shown: WindowState) -> Query:
    """Return a query with the range that the browser stores.

    A zoom changes the address in the browser without Dash, whose copy of the address is out of date until the next
    click.
    """
    return without_window(query) | shown["own"]


def window_state(data: object) -> WindowState:
    """Convert the JSON data stored in the browser to a range."""
    own = data.get("own") if isinstance(data, dict) else None
    texts = {str(name): str(value) for name, value in own.items()} if isinstance(own, dict) else {}
    return WindowState(own=texts, steps=texts.get("steps", ""))


def parse_steps(text: str) -> Span | None:
    """Return the range of steps in a text such as `5`, `5-7` or `5.25-6.7`; None if the text is not valid.

    An end without a fraction includes the whole step.
    """
    match = STEPS.fullmatch(text.strip())
    if not match:
        return None
    last = match[2] or match[1]
    # "5-7" means all of step 7; "5-6.7" ends inside step 6.
    low, high = float(match[1]), float(last) if "." in last else float(last) + 1
    return (low, high) if low < high else None


def steps_text(steps: Span) -> str:
    """Return a range of steps in the format that `parse_steps` reads."""
    low, high = steps
    first = f"{low:.3f}".rstrip("0").rstrip(".")
    last = f"{round(high) - 1}" if abs(high - round(high)) < NEAR and round(high) > low else f"{high:.3f}"
    return first if first == last else f"{first}-{last}"
