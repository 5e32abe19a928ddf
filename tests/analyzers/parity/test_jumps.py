"""The first tensor whose norm jumps, in recordings with a jump in a known step."""

import json

import pytest

from analyzers.parity.report import first_jumps
from analyzers.run import Kind, discover

MODULES = ("embed", "layer", "head")


def recorded(folder, sizes):
    """Write a recording; `sizes` maps (step, kind, name) to a norm other than 1."""
    lines = [{"schema": "workbench.values/1"}]
    for step in range(1, 6):
        forward = [("activation", name) for name in MODULES]
        backward = [("activation_gradient", name) for name in reversed(MODULES)]
        for kind, name in [*forward, *backward, *(("gradient", f"{name}.weight") for name in MODULES)]:
            norm = sizes.get((step, kind, name), 1.0)
            square = None if norm is None else norm**2
            lines.append({"step": step, "kind": kind, "name": name, "sum": 1.0, "absolute": 1.0, "square": square})
    (folder / "values").mkdir()
    (folder / "values" / "rank_0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return discover(folder).of(Kind.VALUES)


def test_the_layer_whose_gradient_jumped_first(tmp_path):
    """In step 4 two gradients jump, in step 5 those of all; the first is the one that the backward pass has first."""
    later = {(5, "gradient", f"{name}.weight"): 50.0 for name in MODULES}
    sizes = {(4, "gradient", "layer.weight"): 8.0, (4, "gradient", "embed.weight"): 16.0, **later}
    jumps = first_jumps(recorded(tmp_path, sizes), 5)
    assert (jumps.step, jumps.gradient.tensor, jumps.gradient.factor) == (4, "layer.weight", 8.0)
    assert (jumps.largest.tensor, jumps.share) == ("embed.weight", pytest.approx(2 / 3))
    assert (jumps.forward, jumps.backward) == (None, None)


def test_an_output_that_jumped_before_the_gradients(tmp_path):
    sizes = {
        (4, "activation", "layer"): 3.0,
        (4, "activation_gradient", "head"): None,
        (4, "gradient", "head.weight"): 9.0,
    }
    jumps = first_jumps(recorded(tmp_path, sizes), 5)
    assert (jumps.forward.tensor, jumps.forward.factor) == ("layer", 3.0)
    assert (jumps.backward.tensor, jumps.backward.factor) == ("head", float("inf"))


@pytest.mark.parametrize("sizes", [{}, {(4, "gradient", "head.weight"): 1.9}, {(2, "gradient", "head.weight"): 9.0}])
def test_no_jump(tmp_path, sizes):
    """Less than twice as large is none, and the second recorded step has too little before it."""
    assert first_jumps(recorded(tmp_path, sizes), 5) is None


def test_what_comes_after_the_step_does_not_count(tmp_path):
    assert first_jumps(recorded(tmp_path, {(5, "gradient", "head.weight"): 9.0}), 4) is None
