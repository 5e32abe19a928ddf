"""Stop the recorders that were attached to an unchanged script, when the script turns out to start its own."""

from collections.abc import Callable
from typing import Any

_on_steps: list[Callable[[Any], None]] = []
_on_flight: list[Callable[[], None]] = []


def register(on_steps: Callable[[Any], None], on_flight: Callable[[], None]) -> None:
    """Register functions that stop the automatically attached recorders when the script starts its own.

    `on_steps` is called with the script's step recorder when that starts, and `on_flight` without arguments when the
    script starts a `FlightRecorder`.
    """
    _on_steps.append(on_steps)
    _on_flight.append(on_flight)


def give_way_to_steps(recorder: object) -> None:
    """Stop the automatic step recorder, if there is one, because the script has started its own, `recorder`."""
    while _on_steps:
        _on_steps.pop()(recorder)


def give_way_to_flight() -> None:
    """Stop the automatic hang recorder, if there is one, because the script starts its own `FlightRecorder`."""
    while _on_flight:
        _on_flight.pop()()


def forget() -> None:
    """Drop the registered functions; called in a forked child, where the automatic recorders do not run."""
    _on_steps.clear()
    _on_flight.clear()
