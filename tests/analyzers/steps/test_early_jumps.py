"""Jumps of the loss among its first values are found, and none is reported in short curves that only vary."""

import numpy as np
import pytest

from analyzers import steps
from analyzers.steps.losses import changes, early_jumps

FALLING = (5.9, 4.4, 3.5, 3.0, 2.6, 2.4, 2.3)


def jumps(losses) -> dict[int, float]:
    return early_jumps(np.array(losses, dtype=float), share=0.2)


def test_a_jump_stands_out_from_a_loss_that_falls_fast():
    assert changes(np.array(FALLING)).max() == pytest.approx(0.6)
    assert jumps([*FALLING, 5.1, 2.3]) == {7: 2.4}
    assert jumps([*FALLING, 4.0, 2.3]) == {}  # 1.6 is less than three times 0.6


def test_a_jump_that_stays_is_one_event():
    assert jumps([*FALLING, 5.1, 5.3, 5.2, 5.4]) == {7: 2.4}


def test_few_values_around_a_jump_tell_nothing():
    assert jumps([3.9, 3.6, 3.4, 3.3, 7.9, 3.4, 3.2]) == {}
    assert jumps([3.9, 3.6, 3.4, 3.3, 7.9, 3.4, 3.2, 3.2, 3.1]) == {4: 3.4}


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_loss_of_a_short_run_has_no_jump(seed):
    chance = np.random.default_rng(seed)
    assert jumps(1.5 + 0.4 * chance.normal(size=int(chance.integers(10, 31)))) == {}


def test_a_jump_in_a_short_run_is_a_spike_of_the_loss(job):
    """The losses of a run whose rank 1 of 2 read another text in step 13."""
    losses = [6.32, 6.16, 5.68, 5.10, 4.47, 3.99, 3.70, 3.41, 3.24, 2.97, 2.79, 2.77, 4.47, 2.62, 2.56, 2.53]
    report = steps.analyze(job(ranks=1, steps=len(losses)).run(loss=lambda _, step: losses[step - 1]))
    (spike,) = [event for event in report.data.events if event.kind == "loss_spike"]
    assert (spike.step, spike.until, spike.before, spike.value) == (13, 14, 2.79, 4.47)
    assert report.verdict.kind == "loss_spike"
