"""Test with files that are small but expensive to analyse; `python -m benchmarks.hostile` tries all kinds of them."""

import pytest

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from benchmarks.hostile.artefacts import KINDS
from benchmarks.hostile.views import timed_views

CHEAP = ["dump_of_the_last_rank", "dumps_in_a_long_ring", "dump_of_a_deep_stack", "trace_of_one_correlation"]


def test_there_are_as_many_kinds_as_the_table_says():
    assert len(KINDS) == 28
    assert all(generator.__doc__ for generator in KINDS.values())


@pytest.mark.parametrize("kind", CHEAP)
def test_it_is_answered(tmp_path, kind):
    KINDS[kind](tmp_path)
    run = discover(tmp_path)
    assert ask(room_for(run), run, Options(cache=False)).json()


@pytest.mark.parametrize(
    ("face", "kind", "views"),
    [
        ("pages", "dumps_in_a_long_ring", ["/", "/hang", "/hang?tab=operations", "/report.html"]),
        ("pages", "snapshot_of_one_address", ["/memory", "/memory?tab=segments", "/memory?tab=entries"]),
        ("terminal", "dumps_in_a_long_ring", ["home", "hang: chain", "hang: stacks", "logs: keys"]),
    ],
)
def test_every_view_of_it_opens(tmp_path, face, kind, views):
    """All pages with their tabs, and all panes with their views, open as for a user."""
    KINDS[kind](tmp_path)
    took = timed_views(face, tmp_path)
    assert set(views) <= set(took)
    assert max(took.values()) < 120
