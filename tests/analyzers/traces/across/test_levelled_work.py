"""How long a rank would work if only chance told it from the others, on tables of work written by hand."""

import numpy as np
import pytest

from analyzers.traces.clocks import MatchedCollectives
from analyzers.traces.lateness import Lateness
from analyzers.traces.rank_waits import levelled_work

OTHERS = [20, 21, 20, 20, 22, 20, 21, 20]
"""What each of two other ranks works before the collective of a step (ms)."""


def levelled(*work):
    """Return the levelled work (ms) of the last rank, if all ranks share one collective in each step."""
    ranks, steps = len(work), len(work[0])
    collective, rank = np.repeat(np.arange(steps), ranks), np.tile(np.arange(ranks), steps)
    columns = {"work_ns": np.array(work, np.int64).T.ravel() * 1_000_000, "step": collective + 1}
    recordings = [type("Recording", (), {"rank": number}) for number in range(ranks)]
    matched = MatchedCollectives(recordings, collective, rank, collective, columns)
    return (levelled_work(Lateness(matched, []), "work_ns")[ranks - 1 :: ranks] / 1e6).tolist()


def test_delays_by_chance_stay_and_a_late_step_becomes_like_that_of_the_others():
    assert levelled(OTHERS, OTHERS, [20, 22, 71, 19, 22, 20, 21, 20]) == [20, 22, 20, 19, 22, 20, 21, 20]


def test_a_rank_that_is_late_in_every_other_step_keeps_its_own_work_in_the_rest():
    own = [70, 21, 71, 19, 70, 21, 72, 19, 70, 20]
    others = [20] * 10
    assert levelled(others, others, own) == [20, 21, 20, 19, 20, 21, 20, 19, 20, 20]


def test_a_rank_that_is_late_in_every_step_keeps_its_scatter_around_the_others():
    own = [71, 70, 70, 69, 70, 71, 69, 70]
    others = [20] * 8
    assert levelled(others, others, own) == [21, 20, 20, 19, 20, 21, 19, 20]


def test_too_few_steps_show_no_chance():
    assert levelled([20, 20, 20], [20, 20, 20], [21, 20, 70]) == [20, 20, 20]


@pytest.mark.parametrize("extra", [0, 3])
def test_the_same_distance_in_all_steps_is_taken_off(extra):
    assert levelled(OTHERS, OTHERS, [each + extra for each in OTHERS]) == OTHERS
