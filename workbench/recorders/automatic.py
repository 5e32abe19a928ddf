"""Stop the recorders that were attached to an unchanged script if the script starts recorders of its own."""

from collections.abc import Callable
from typing import Any

_on_steps: list[Callable[[Any], None]] = []
_on_flight: list[Callable[[], None]] = []


def register(on_steps: Callable[[Any], None], on_flight: Callable[[], None]) -> None:
    """Register functions that stop the automatic recorders when the script starts its own.

    When the script starts a step recorder, `on_steps` is called with this recorder. When the script starts a
    `FlightRecorder`, `on_flight` is called without arguments.
    """
    _on_steps.append(on_steps)
    _on_flight.append(on_flight)


def give_way_to_steps(recorder: object) -> None:
    """Stop the automatic step recorder, if there is one: the script has started its own step recorder, `recorder`."""
    while _on_steps:
        _on_steps.pop()(recorder)


def give_way_to_flight() -> None:
    """Stop the automatic hang recorder, if there is one: the script starts its own `FlightRecorder`."""
    while _on_flight:
        _on_flight.pop()()


def forget() -> None:
    """Drop the registered functions in a forked child, where the automatic recorders do not run."""
    _on_steps.clear()
    _on_flight.clear()
