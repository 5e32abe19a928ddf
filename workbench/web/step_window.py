"""The range of steps that applies to all charts, and its position on the axis of each chart.

In the address, `steps=5-7` means all of steps 5, 6 and 7; `steps=5.25-6.7` starts and ends inside a step. `from` and
`to` are the same range in the unit of the page's own axis: trace entries or nanoseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from workbench.step_axis import NEAR, Span, StepMarks
from workbench.web.query import Query

# Digits are limited, as the field takes whatever is typed or pasted.
STEPS = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:\s*(?:-|to)\s*(\d{1,9}(?:\.\d{1,6})?))?")
ALL_STEPS = "all"
"""The value of `steps` in an address that selects everything, for pages that by default show only a part."""
WINDOW_NAMES = ("from", "to", "steps")
"""The names of the query parameters that select a range."""


class WindowState(TypedDict):
    """The selected range as the browser stores it.

    `own` has the query parameters for the address of this page, `steps` the text for links to other pages.
    """

    own: dict[str, str]
    steps: str


@dataclass(frozen=True)
class Window:
    """The range that a page shows: `span` on its own axis (ns for traces, entries for memory), and `steps` in steps.

    `span` is None for the whole axis; `steps` is None for all steps, or if the steps are unknown.
    """

    span: tuple[int, int] | None = None
    steps: Span | None = None
    everything: bool = False
    """Whether the address asks for everything, on a page that by default shows only a part."""

    def state(self) -> WindowState:
        """Return the range as the browser stores it."""
        steps = {"steps": steps_text(self.steps)} if self.steps else {}
        own = {"from": str(self.span[0]), "to": str(self.span[1])} if self.span else {}
        own |= {"steps": ALL_STEPS} if self.everything else {}
        return {"own": own | steps, "steps": steps.get("steps", "")}


def window_of(query: Query, span: tuple[int, int] | None, marks: StepMarks) -> Window:
    """Return the range that an address selects.

    It is `span`, a range on the page's own axis, if that is given; else the steps in the query. `marks` converts one to
    the other.
    """
    if span:
        return Window(span, marks.steps_within(span))
    steps = parse_steps(query.get("steps", ""))
    return Window(marks.span_of(steps) if steps else None, steps)


def without_window(query: Mapping[str, str]) -> Query:
    """Return a query without the parameters that select a range: `from`, `to` and `steps`."""
    return {name: value for name, value in query.items() if name not in WINDOW_NAMES}


def own_window(query: Mapping[str, str]) -> Query:
    """Return only those parameters of a query that select a range: `from`, `to` and `steps`."""
    return {name: value for name, value in query.items() if name in WINDOW_NAMES}


def with_window(query: Query, shown: WindowState) -> Query:
    """Return a query in which the range is replaced by `shown`, the one that the browser stores.

    A zoom changes the address in the browser without Dash, whose copy of the address is out of date until the next
    click.
    """
    return without_window(query) | shown["own"]


def window_state(data: object) -> WindowState:
    """Return the range in `data`, the JSON data that the browser stores; other content is ignored."""
    own = data.get("own") if isinstance(data, dict) else None
    texts = {str(name): str(value) for name, value in own.items()} if isinstance(own, dict) else {}
    steps = texts.get("steps", "")
    return WindowState(own=texts, steps="" if steps == ALL_STEPS else steps)


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
