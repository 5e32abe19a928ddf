"""What rows of numbers show although no line reports an error: public excerpts, and rows that must not alarm."""

import random

import pytest

from analyzers.failures.catalogue import known
from analyzers.failures.entry import headline, next_steps
from analyzers.logs.report import case_of

_MEGATRON = (
    " iteration {step:>8}/  250000 | elapsed time per iteration (ms): 4247.9 | learning rate: 2.999E-04 | global batch"
    " size:     8 |{loss} loss scale: {scale} | grad norm: {norm} | number of skipped iterations:   {skipped} | number"
    " of nan iterations:   0 |"
)


def _said(text: str) -> tuple[str, str, str]:
    """Return (id of the entry, headline, all next steps) for a text; three empty texts if no failure is seen."""
    case = case_of(text)
    if case is None:
        return "", "", ""
    entry, case = known(case)
    return entry.id, headline(entry, case), " ".join(next_steps(entry, case))


def _noisy(level: float, count: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [level * rng.uniform(0.85, 1.15) for _ in range(count)]


def _nano(losses: list[float]) -> str:
    return "\n".join(f"iter {n}: loss {loss:.4f}, time 197.87ms" for n, loss in enumerate(losses, 1100))


def test_a_loss_with_the_same_digits_in_all_rows_learns_nothing() -> None:
    entry, head, _ = _said(_nano([10.8259] * 23))
    assert entry == "training.stuck_loss"
    assert "10.826 in 23 rows" in head


@pytest.mark.parametrize("losses", [_noisy(10.8, 23, 1), [10.8259] * 5, [2.5] * 40, _noisy(0.002, 30, 2)])
def test_a_loss_that_varies_or_has_few_rows_or_digits_is_not_stuck(losses: list[float]) -> None:
    assert _said(_nano(losses))[0] != "training.stuck_loss"


def test_a_loss_that_jumps_and_stays_is_told_with_the_step() -> None:
    entry, head, steps = _said(_nano([*_noisy(1.7, 6, 3), *_noisy(11.4, 8, 4)]))
    assert entry == "training.raised_loss"
    assert "at step 1106" in head
    assert "before the jump" in steps


@pytest.mark.parametrize(
    "losses",
    [
        [*_noisy(1.7, 6, 3), 11.4, *_noisy(1.7, 8, 4)],
        [*_noisy(1.7, 12, 3), 11.4, 11.2],
        [*_noisy(1.7, 6, 3), *_noisy(2.6, 8, 4)],
    ],
)
def test_a_jump_that_comes_back_or_is_small_or_at_the_end_is_no_lasting_one(losses: list[float]) -> None:
    assert _said(_nano(losses))[0] != "training.raised_loss"


def test_steps_that_are_all_skipped_learn_nothing() -> None:
    rows = [_MEGATRON.format(step=n, loss="", scale="16384.0", norm="inf", skipped=1) for n in range(1, 6)]
    assert _said("\n".join(row.replace("| grad norm: inf ", "") for row in rows))[0] == "training.all_skipped"
    some = [
        _MEGATRON.format(step=n, loss=" lm loss: 1.3E+00 |", scale="1.0", norm="0.7", skipped=int(n < 3))
        for n in range(9)
    ]
    assert _said("\n".join(some))[0] == ""


def test_rows_of_equal_length_are_not_joined_to_the_nan_below_them() -> None:
    fine = [
        _MEGATRON.format(step=n, loss=" lm loss: 7.3E-01 |", scale="1.0", norm="0.752", skipped=0) for n in (3383, 3384)
    ]
    broken = [_MEGATRON.format(step=n, loss="", scale="1.0", norm="nan", skipped=0) for n in (3385, 3386)]
    entry, head, _ = _said("\n".join([*fine, *broken]))
    assert entry == "numerics.nonfinite"
    assert head.endswith("at step 3385")


def test_a_text_that_begins_with_nan_does_not_say_when_it_began() -> None:
    rows = "\n".join(_MEGATRON.format(step=n, loss="", scale="1.0", norm="nan", skipped=0) for n in range(5426, 5430))
    entry, head, steps = _said(rows)
    assert entry == "numerics.nonfinite"
    assert "in the first row of this text (step 5426)" in head
    assert "before step 5426" not in steps
    assert "the last row that is finite" in steps
