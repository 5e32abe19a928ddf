"""Marked steps without a backward pass are named where other steps have one: evaluation is no training step."""

import pytest

MS = 1_000_000
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def recorded(maker, kinds, *, name=BACKWARD, cat="cpu_op", mark=True):
    """Return the problems of a trace whose steps train ("t"), evaluate ("e") or do nothing ("-")."""
    made = maker.Tracing()
    for number, kind in enumerate(kinds, 1):
        start = number * 100 * MS
        if mark:
            made.step(number, start, 90 * MS)
        if kind == "-":
            continue
        made.event("aten::mm", "cpu_op", start + MS, 20 * MS)
        if kind == "t":
            made.event(name, cat, start + 40 * MS, 20 * MS)
        made.kernel("gemm", start + 10 * MS, 60 * MS, (start + 5 * MS, MS))
    [problems] = maker.problems(made.text())
    return problems


@pytest.mark.parametrize(
    ("kinds", "options", "count"),
    [
        ("tttettte", {}, 2),
        ("tttt", {}, 0),
        ("eeee", {}, 0),
        ("ttte", {"name": "fwd_bwd", "cat": "user_annotation"}, 1),
        ("ttte", {"mark": False}, 0),
        ("e", {}, 0),
        ("ttt-", {}, 0),
    ],
    ids=["evaluation", "training", "inference", "annotated", "no marks", "one step", "an empty step at the end"],
)
def test_steps_that_only_evaluate_are_counted(maker, kinds, options, count):
    found = recorded(maker, kinds, **options).get("forward_only_steps")
    assert (found["count"] if found else 0) == count
    assert found is None or found["total"] == len(kinds)
