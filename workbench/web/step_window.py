"""The range of steps that applies to all charts, and its position on the axis of each chart.

In the page's address, `steps=5-7` means all of steps 5, 6 and 7; `steps=5.25-6.7` starts and ends inside a step. `from`
and `to` give the same range in the unit of the page's own axis: trace entries or nanoseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import pandas as pd

from analyzers.memory import views as memory
from analyzers.memory.model import Device
from analyzers.run import TIMED, Artefact
from analyzers.steps import StepsData
from analyzers.steps import views as steps
from analyzers.store import Options
from analyzers.traces import views as traces
from workbench.axes import NEAR, Span, StepMarks
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

# Digits are limited, as the field takes whatever is typed or pasted.
STEPS = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:\s*(?:-|to)\s*(\d{1,9}(?:\.\d{1,6})?))?")
ALL_STEPS = "all"
"""The value of `steps` in an address that selects all steps, for pages that by default show only some."""
_WINDOW_NAMES = ("from", "to", "steps")
"""The names of the query parameters that select a range."""


class WindowState(TypedDict):
    """The selected range as the browser stores it.

    `own` has the query parameters for the address of this page; `steps` is the text that links to other pages carry.
    """

    own: dict[str, str]
    steps: str


@dataclass(frozen=True)
class Window:
    """The range that a page shows: `span` in the unit of its own axis, and `steps` in steps.

    The unit of `span` is ns for traces and trace entries for memory; None stands for the whole axis. `steps` is None
    for all steps, or if the steps are unknown.
    """

    span: tuple[int, int] | None = None
    steps: Span | None = None
    everything: bool = False
    """Whether the address selects all steps, on a page that by default shows only some."""

    def state(self) -> WindowState:
        """Return the range as the browser stores it."""
        steps = {"steps": steps_text(self.steps)} if self.steps else {}
        own = {"from": str(self.span[0]), "to": str(self.span[1])} if self.span else {}
        own |= {"steps": ALL_STEPS} if self.everything else {}
        return {"own": own | steps, "steps": steps.get("steps", "")}


def window_of(query: Query, span: tuple[int, int] | None, marks: StepMarks) -> Window:
    """Return the range that an address selects.

    `span` is the range on the page's own axis, if the address has one; otherwise the steps in `query` count. `marks`
    converts between the two.
    """
    if span:
        return Window(span, marks.steps_within(span))
    steps = parse_steps(query.get("steps", ""))
    return Window(marks.span_of(steps) if steps else None, steps)


def without_window(query: Mapping[str, str]) -> Query:
    return {name: value for name, value in query.items() if name not in _WINDOW_NAMES}


def own_window(query: Mapping[str, str]) -> Query:
    """Return only the parameters of a query that select a range: `from`, `to` and `steps`."""
    return {name: value for name, value in query.items() if name in _WINDOW_NAMES}


def with_window(query: Query, shown: WindowState) -> Query:
    """Return a query whose range is replaced by `shown`, the range that the browser stores.

    A zoom changes the address in the browser without telling Dash. Until the next click, Dash's copy of the address has
    the old range.
    """
    return without_window(query) | shown["own"]


def window_state(data: object) -> WindowState:
    """Return the range in `data`, the JSON that the browser stores; invalid content counts as no range."""
    own = data.get("own") if isinstance(data, dict) else None
    texts = {str(name): str(value) for name, value in own.items()} if isinstance(own, dict) else {}
    steps = texts.get("steps", "")
    return WindowState(own=texts, steps="" if steps == ALL_STEPS else steps)


def parse_steps(text: str) -> Span | None:
    """Return the range of steps in a text such as `5`, `5-7` or `5.25-6.7`; None if the text is not valid.

    The end is exclusive: `5-7` becomes (5.0, 8.0), because all of step 7 is meant, and `5-6.7` becomes (5.0, 6.7).
    """
    match = STEPS.fullmatch(text.strip())
    if not match:
        return None
    last = match[2] or match[1]
    # "5-7" means all of step 7; "5-6.7" ends inside step 6.
    low, high = float(match[1]), float(last) if "." in last else float(last) + 1
    return (low, high) if low < high else None


def steps_text(steps: Span) -> str:
    """Return a range of steps as a text that `parse_steps` reads, such as `5-7`."""
    low, high = steps
    first = f"{low:.3f}".rstrip("0").rstrip(".")
    last = f"{round(high) - 1}" if abs(high - round(high)) < NEAR and round(high) > low else f"{high:.3f}"
    return first if first == last else f"{first}-{last}"


# More than the ranks of a snapshot that a page compares, so that a zoom never reads a clock twice.
KEPT = 256


def memory_marks(served: ServedRun, device: Device) -> StepMarks:
    return _snapshot_marks(served.snapshot(device.path), served.options, device.device, step_logs(served))


def trace_marks(served: ServedRun, artefact: Artefact) -> StepMarks:
    """Return the steps of a trace: the times in ns at which training steps start and end."""
    return _trace_file_marks(artefact, served.options, step_logs(served))


def step_logs(served: ServedRun) -> tuple[Artefact, ...]:
    return tuple(served.run.of(*TIMED)) if served.data(StepsData) else ()


@lru_cache(KEPT)
def _snapshot_marks(artefact: Artefact, options: Options, device: int, logs: tuple[Artefact, ...]) -> StepMarks:
    return StepMarks.of(memory.clock(artefact, options, device, _logged_steps(logs, options, artefact.rank)))


@lru_cache(KEPT)
def _trace_file_marks(artefact: Artefact, options: Options, logs: tuple[Artefact, ...]) -> StepMarks:
    return StepMarks.of(traces.clock(artefact, options, _logged_steps(logs, options, artefact.rank)))


def _logged_steps(logs: tuple[Artefact, ...], options: Options, rank: int | None) -> pd.DataFrame | None:
    return steps.clock(logs, options, rank) if logs else None
