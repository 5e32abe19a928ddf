"""The value axis of the terminal's charts: its labels are round, and the data fill its height."""

import doctest

import pandas as pd
import pytest
from textual.app import App, ComposeResult

from analyzers.words import duration, size
from workbench.present.parity_lines import Lines
from workbench.tui.widgets import axes
from workbench.tui.widgets.axes import Unit, value_axis, without_zeros
from workbench.tui.widgets.line_chart import LossChart, floor_below, round_heights

MIB, GIB = 1 << 20, 1 << 30


def labels(largest, rows, unit, written):
    return [without_zeros(written(value)) for value in value_axis(largest, rows, unit).labels.values()]


def test_the_examples():
    assert doctest.testmod(axes).failed == 0


@pytest.mark.parametrize(
    ("largest", "rows", "unit", "written", "expected"),
    [
        (0.602, 25, Unit.SECONDS, duration, ["100 ms", "200 ms", "300 ms", "400 ms", "500 ms", "600 ms"]),
        (0.602, 5, Unit.SECONDS, duration, ["250 ms", "500 ms"]),
        (5000, 15, Unit.SECONDS, duration, ["30 min", "60 min", "90 min"]),
        (195.2 * MIB, 15, Unit.BYTES, size, ["40 MiB", "80 MiB", "120 MiB", "160 MiB", "200 MiB"]),
        (78 * GIB, 15, Unit.BYTES, size, ["16 GiB", "32 GiB", "48 GiB", "64 GiB", "80 GiB"]),
        (14.5 * MIB, 25, Unit.BYTES, size, ["3 MiB", "6 MiB", "9 MiB", "12 MiB", "15 MiB"]),
        (170, 9, Unit.SECONDS, duration, ["60 s", "2 min", "3 min"]),
        (0.0, 15, Unit.BYTES, size, []),
        (1.79e308, 15, Unit.NUMBER, str, []),
    ],
)
def test_labels_are_round(largest, rows, unit, written, expected):
    assert labels(largest, rows, unit, written) == expected


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("rows", [3, 5, 9, 15, 25, 37, 60])
def test_the_data_fill_the_height(unit, rows):
    """Of a chart of 15 rows or more at most a sixth stays empty, and of a lower one at most a half."""
    for power in range(16, 60):
        largest = 1.7 ** (power - 30 if unit is Unit.SECONDS else power)
        axis = value_axis(largest, rows, unit)
        assert largest <= axis.top * (1 + 1e-9) <= largest * (1.9 if rows < 15 else 1.19)
        assert len(axis.labels) >= 2


@pytest.mark.parametrize(
    ("lowest", "highest", "floor"),
    [(5.87, 6.11, 5.85), (0.01, 2.3, 0.0), (-1.2, 3.0, -2.0), (float("nan"), float("nan"), 0.0)],
)
def test_the_lower_edge_of_losses_is_round(lowest, highest, floor):
    assert floor_below(lowest, highest) == floor


class LossApp(App[None]):
    def compose(self) -> ComposeResult:
        yield LossChart()


async def test_losses_have_round_labels_and_the_cursor_is_at_the_first_that_is_not_finite():
    losses = [6.11, 6.05, 5.98, 5.93, 5.87, float("nan"), float("nan")]
    frame = pd.DataFrame({"step": range(1, 8), "loss": losses, "broken": [False] * 5 + [True] * 2})
    app = LossApp()
    async with app.run_test(size=(90, 24)):
        chart = app.query_one(LossChart)
        chart.show(frame)
        text = "\n".join(chart.render_line(y).text for y in range(chart.size.height))
        assert [line.split("┤")[0].strip() for line in text.splitlines() if "┤" in line] == [
            "6.1",
            "6.05",
            "6",
            "5.95",
            "5.9",
        ]
        assert "5.85 ┘" in text
        assert chart.cursor == 5


def test_lines_have_round_labels():
    table = pd.DataFrame({"a": [6.203, 6.1, 5.811]}, index=[1, 2, 3])
    assert round_heights(Lines("", table), 20) == (5.8, 6.3, [5.8, 5.9, 6.0, 6.1, 6.2, 6.3])


def test_lines_of_logarithms_are_labelled_with_powers_of_ten():
    table = pd.DataFrame({"a": [-9.9, -7.0, -2.1]}, index=[1, 2, 3])
    assert round_heights(Lines("", table, power=True), 20) == (-10.0, -2.0, [-10.0, -8.0, -6.0, -4.0, -2.0])


def test_labels_that_would_be_equal_have_more_digits():
    """A gradient norm between 1.200 and 1.212 had the labels 1.20, 1.20, 1.20, 1.21, 1.21."""
    lines = Lines("", pd.DataFrame({"a": [1.2, 1.212]}, index=[1, 2]))
    assert lines.texts_of([1.2, 1.2025, 1.205]) == ["1.2000", "1.2025", "1.2050"]
    assert lines.texts_of([1.2, 1.2004]) == ["1.2000", "1.2004"]
    assert lines.texts_of([5.8, 5.9]) == ["5.80", "5.90"]
    labels = lines.texts_of(round_heights(lines, 30)[2])
    assert len({*labels}) == len(labels)
    assert lines.texts_of([1.2, 1.2]) == ["1.20", "1.20"]
