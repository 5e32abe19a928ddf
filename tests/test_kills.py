"""Kill processes at random moments; `python benchmarks/safety/kills.py` does the same with many rounds."""

import pytest


@pytest.fixture(scope="module")
def kills(script):
    return script("safety/kills")


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_reader_is_named_and_the_next_answer_is_whole(kills, tmp_path, seed):
    assert kills.kill("reader", seed, tmp_path) == []


@pytest.mark.parametrize(
    "victim",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("rank", "launcher")),
        *(pytest.param(name, marks=pytest.mark.rare) for name in ("collector", "tui", "serve")),
    ],
)
def test_whatever_is_killed_nothing_written_is_lost_and_a_restart_goes_on(kills, tmp_path, victim):
    assert kills.kill(victim, 0, tmp_path) == []
