"""The chart of phases: what it draws, and how its legend names it."""

import pandas as pd
import pytest

from workbench.web.components.figure import theme
from workbench.web.components.step_charts import loss_chart, phase_stack, step_ticks

STEPS = {
    "fwd": [1.0, 1.0],
    "loss_sync": [0.5, 0.5],
    "gc": [0.001, 0.02],
    "log": [0.001, 0.001],
    "optim": [0.002, 0.001],
    "zero": [0.0, 0.0],
}


def test_phases_too_short_to_be_seen_share_one_entry_of_the_legend():
    """A phase that is long in one step keeps its entry; the heights of the columns stay."""
    phases = pd.DataFrame(STEPS, index=[3, 4])
    drawn = {bar.name: bar for bar in phase_stack(phases).data}
    assert list(drawn) == ["fwd", "loss_sync", "gc", "other phases"]
    assert drawn["other phases"].marker.color == theme().phases["other"]
    assert not drawn["other phases"].marker.pattern.shape
    heights = pd.DataFrame({name: list(bar.y) for name, bar in drawn.items()}).sum(axis=1)
    assert heights.tolist() == pytest.approx(phases.sum(axis=1).tolist())


def test_a_single_short_phase_keeps_its_name():
    phases = pd.DataFrame({"fwd": [1.0], "log": [0.001]}, index=[3])
    assert [bar.name for bar in phase_stack(phases).data] == ["fwd", "log"]


def test_a_phase_has_one_colour_whatever_is_beside_it():
    """The time of the profiler is grey and on top; an unknown phase keeps its colour wherever it stands."""
    few = pd.DataFrame({"profiler": [9.0], "fwd": [1.0], "mine": [0.5], "residual": [0.2]}, index=[3])
    many = few[["fwd"]].assign(bwd=3.0, optim=2.0, mine=7.0, profiler=0.5)
    first, second = ({bar.name: bar.marker for bar in phase_stack(frame).data} for frame in (few, many))
    assert list(first) == ["fwd", "mine", "profiler", "in no phase"]
    assert list(second)[-1] == "profiler"
    assert first["profiler"].color == second["profiler"].color == theme().hues["grey"]
    assert first["mine"].color == second["mine"].color
    assert first["profiler"].pattern.shape != first["in no phase"].pattern.shape


def test_each_step_has_a_label_only_where_the_steps_lie_close_together():
    """A loss of every tenth step has few values; a label at each step between them would be turned and cut."""
    assert step_ticks(range(3, 9)) == {"dtick": 1}
    assert step_ticks(range(1, 242, 24)) == step_ticks([]) == {}
    sparse = pd.DataFrame({"step": range(1, 242, 24), "loss": 1.0})
    assert loss_chart(sparse, None).layout.xaxis.dtick is None
