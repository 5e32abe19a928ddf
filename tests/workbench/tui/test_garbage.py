"""A full search for garbage waits until the user is idle."""

import gc
import weakref

import pytest

from workbench.tui import terminal_app
from workbench.tui.terminal_app import DUE, IdleSearch, leave_searches_to_idle_times


class Node:
    """An object that refers to itself, so that only a search for garbage frees it."""

    def __init__(self):
        self.me = self


@pytest.fixture
def thresholds():
    """Fixture: Python's own settings are restored after the test."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_only_an_idle_user_waits_for_a_full_search(thresholds, monkeypatch):
    gc.collect()
    leave_searches_to_idle_times()
    lost = weakref.ref(Node())
    for _ in range(DUE + 1):
        gc.collect(1)  # moves what is left to the oldest objects
    kept = weakref.ref(Node())
    search = IdleSearch()
    search.note_input()
    search.search_if_idle()
    assert kept() is not None
    monkeypatch.setattr(terminal_app, "IDLE_S", -1.0)
    search.search_if_idle()
    assert lost() is None
    assert kept() is None
