"""Search for garbage while the user is idle: a full search takes a tenth of a second, for which a key would wait."""

import gc
import time

_SELDOM = 1 << 30
"""How often Python collects younger objects before a full search of its own: practically never."""
IDLE_S = 3.0
DUE = 10
"""How many collections of younger objects make a full search due, as in Python's own setting."""


def leave_searches_to_idle_times() -> None:
    """Let Python start no full search for garbage by itself, and never search what is loaded by now."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)


class IdleSearch:
    """Starts a full search for garbage once the user has done nothing for `IDLE_S` seconds."""

    def __init__(self) -> None:
        self._last_input = time.monotonic()

    def note_input(self) -> None:
        """Take down that the user has pressed a key or moved the mouse."""
        self._last_input = time.monotonic()

    def search_if_idle(self) -> None:
        """Search for garbage if a search is due and the user is idle."""
        if gc.get_count()[2] >= DUE and time.monotonic() - self._last_input > IDLE_S:
            gc.collect()
