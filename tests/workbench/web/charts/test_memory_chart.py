"""What is written into the chart of memory over time: the numbers of steps, and the peak."""

from itertools import pairwise

import pandas as pd
import pytest

from workbench.web.components.memory import BETWEEN, LETTER, WIDTH, label_of, peak, with_room


def reaches(labels):
    """Return (left, right) of each label in pixels, in the narrowest chart, whose axis is from 0 to 1."""
    for i, (step, at, ends) in enumerate(labels):
        wide = len(label_of(step, i == 0)) * LETTER
        right = at * WIDTH + (0 if ends else wide)
        yield right - wide, right


@pytest.mark.parametrize("count", [3, 60, 2000])
def test_labels_of_steps_leave_space_between_them(count):
    """None reaches beyond the axis either, which Plotly would make longer for it."""
    labels = with_room([(step, step / (count + 1)) for step in range(count + 1)], 0.0, 1.0)
    edges = [*reaches(labels)]
    assert len(edges) >= min(count, 6)
    assert all(left - right >= BETWEEN - 1e-6 for (_, right), (left, _) in pairwise(edges))
    assert edges[-1][1] <= WIDTH
    if count > 20:
        assert all(step % 5 == 0 for step, _, _ in labels[1:])


def test_a_step_at_the_end_is_named_to_the_left_of_its_line():
    assert with_room([(5, 0.0), (6, 0.999)], 0.0, 1.0) == [(5, 0.0, False), (6, 0.999, True)]


@pytest.mark.parametrize(("top", "text", "side"), [(9, "peak ▼", "right"), (0, "▼ peak", "left")])
def test_the_triangle_is_at_the_peak_and_its_name_where_there_is_room(top, text, side):
    frame = pd.DataFrame({"x": range(10), "allocated": [int(i == top) for i in range(10)]})
    marked = peak(frame, 0.0, 9.0)
    assert (marked["x"], marked["text"], marked["xanchor"]) == (top, text, side)
