"""Stacked charts of the terminal: the area of each layer is its share of the data."""

import numpy as np
import pandas as pd
import pytest
from textual.app import App, ComposeResult

from workbench.colours import CATEGORIES
from workbench.tui.widgets.line_chart import step_ticks
from workbench.tui.widgets.memory_timeline import MemoryTimeline, StepStart
from workbench.tui.widgets.stacked_chart import EIGHTHS, LEVELS, Cell, stacked_cells

ROWS, COLUMNS = 20, 120


def eighths_of(cells, layers):
    """Return how many eighths of cells each layer has in a picture."""
    area = np.zeros(layers + 1)
    for column in cells:
        for cell in column:
            area[cell.below] += cell.eighths
            area[cell.above] += EIGHTHS - cell.eighths
    return area[:layers]


def test_two_layers_in_one_cell_are_both_drawn():
    assert stacked_cells(np.array([[5.0, 3.0], [5.0, 3.0]]), 8.0, 1) == [[Cell(5, 0, 1)], [Cell(5, 0, 1)]]


def test_a_layer_thinner_than_a_cell_has_its_area():
    """A layer of 55 ms must not hide one of 411 ms, nor vanish behind it."""
    layers = np.tile([411.0, 55.0, 30.0, 12.0, 200.0], (COLUMNS, 1))
    drawn = eighths_of(stacked_cells(layers, 708.0, ROWS), 5)
    assert drawn == pytest.approx(layers.sum(axis=0) / 708.0 * ROWS * EIGHTHS, rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_the_area_of_every_layer_is_right(seed):
    """Of nine layers that rise and fall, none is wrong by more than a tenth of its area and one cell; four are thin."""
    random, time = np.random.default_rng(seed), np.linspace(0, 6, COLUMNS)
    usual = np.array([30, 30, 60, 50, 2, 3, 1, 0.5, 1.0])
    waves = [1 + 0.5 * np.sin(time * random.uniform(1, 6) + random.uniform(0, 6)) for _ in usual]
    layers = np.stack(waves, axis=1) * usual * random.uniform(0.5, 1.5, usual.size)
    top = layers.sum(axis=1).max()
    wanted = layers.sum(axis=0) / top * ROWS * EIGHTHS
    drawn = eighths_of(stacked_cells(layers, top, ROWS), usual.size)
    assert np.all(np.abs(drawn - wanted) <= 0.1 * wanted + EIGHTHS)


@pytest.mark.parametrize("seed", range(3))
def test_the_upper_edge_is_where_it_belongs(seed):
    layers = np.random.default_rng(seed).uniform(0, 10, (COLUMNS, 4))
    blank = layers.shape[1]
    for column, cells in zip(layers, stacked_cells(layers, 40.0, ROWS), strict=True):
        empty = sum((cell.below == blank) * cell.eighths + (cell.above == blank) * (8 - cell.eighths) for cell in cells)
        assert ROWS * EIGHTHS - empty == pytest.approx(column.sum() / 40.0 * ROWS * EIGHTHS, abs=0.5)


class ChartApp(App[None]):
    def compose(self) -> ComposeResult:
        yield MemoryTimeline()


def instants():
    parts = {name: np.linspace(1, 9, 40) * 2**20 for name in CATEGORIES}
    total = np.sum([*parts.values()], axis=0).astype(int)
    return pd.DataFrame({"entry": np.arange(40) * 10, "oom": 0, "allocated": total, **parts})


async def test_the_axis_has_values_and_steps():
    app = ChartApp()
    async with app.run_test(size=(90, 24)):
        chart = app.query_one(MemoryTimeline)
        chart.show(instants(), [StepStart(2, 0), StepStart(3, 105), StepStart(4, 200), StepStart(5, 395)])
        lines = [chart.render_line(y).text for y in range(chart.size.height)]
        labels = [line.split("┤")[0].strip() for line in lines if "┤" in line]
        assert labels == ["80 MiB", "64 MiB", "48 MiB", "32 MiB", "16 MiB"]
        assert "step 2" in lines[-2]
        assert lines[-2].index("3") == chart.axis_width + chart.starts[11]
        assert {len(line) for line in lines} == {chart.size.width}
        assert any("│" in line[chart.axis_width :] for line in lines[1:-3])
        assert lines[1][chart.axis_width :].count(" ") > chart.columns // 2


async def test_layers_have_signs_where_there_are_no_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = ChartApp()
    async with app.run_test(size=(90, 24)):
        chart = app.query_one(MemoryTimeline)
        chart.show(instants())
        picture = "".join(chart.render_line(y).text for y in range(1, chart.size.height - 3))
        assert {"█", "▒", "░"} <= set(picture)


async def test_small_values_stay_visible_without_colours(monkeypatch):
    """Steps far below the peak fill less than half of the lowest cell."""
    monkeypatch.setenv("NO_COLOR", "1")
    app = ChartApp()
    async with app.run_test(size=(90, 24)):
        chart, frame = app.query_one(MemoryTimeline), instants()
        parts = list(CATEGORIES)
        frame.loc[:30, parts] /= 20
        frame["allocated"] = frame[parts].sum(axis=1).astype(int)
        chart.show(frame)
        lowest = chart.render_line(chart.size.height - 3).text[chart.axis_width :]
        assert set(lowest[: chart.starts[20]]) <= set(LEVELS[1:])


@pytest.mark.parametrize("columns", range(40, 100, 3))
async def test_the_line_below_a_chart_ends_with_a_whole_word(columns):
    app = ChartApp()
    async with app.run_test(size=(columns, 24)):
        chart = app.query_one(MemoryTimeline)
        chart.show(instants())
        text = chart.render_line(chart.size.height - 1).text.rstrip()
        assert "▼ peak 81.0 MiB   entry 0 … 390   │ cursor".startswith(text)
        assert text.endswith(("MiB", "390", "cursor"))


async def test_a_chart_without_keys_has_no_cursor():
    app = ChartApp()
    async with app.run_test(size=(90, 24)):
        chart = app.query_one(MemoryTimeline)
        chart.can_focus = False
        chart.show(instants())
        cells = [chart.render_line(y).text[chart.axis_width :] for y in range(chart.size.height)]
        assert not any("│" in line for line in cells)


async def test_the_rows_share_the_whole_width():
    """50 rows in 76 columns leave none empty: some rows are two columns wide."""
    app = ChartApp()
    async with app.run_test(size=(90, 24)):
        chart = app.query_one(MemoryTimeline)
        chart.show(instants().sample(50, replace=True, random_state=1).assign(entry=range(50)))
        assert chart.starts[-1] == chart.columns
        assert set(np.diff(chart.starts)) <= {1, 2}
        chart.cursor = 49
        top = chart.render_line(0).text
        assert top.rstrip().endswith(("│", "▼"))
        assert len(top.rstrip()) >= chart.size.width - 2


async def test_of_many_steps_of_a_snapshot_the_round_ones_are_labelled():
    app = ChartApp()
    async with app.run_test(size=(90, 24)):
        chart = app.query_one(MemoryTimeline)
        frame = pd.concat([instants()] * 2, ignore_index=True).assign(entry=range(0, 1600, 20))
        chart.show(frame, [StepStart(6 + step, step) for step in range(1600)])
        assert list(chart.ticks().values()) == ["step 6", *map(str, range(200, 1401, 200))]


@pytest.mark.parametrize(
    ("steps", "columns", "labels"),
    [
        (range(1, 51), 66, ["step 1", "5", "10", "15", "20", "25", "30", "35", "40", "45", "50"]),
        (range(1, 11), 66, ["step 1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]),
        (range(100, 1000, 7), 60, ["step 100", "205", "303", "401", "506", "604", "702", "800", "905"]),
        ([7], 66, ["step 7"]),
        (range(2, 300, 5), 60, ["step 2", "50", "100", "150", "200", "250"]),
    ],
)
def test_labelled_steps_are_round(steps, columns, labels):
    assert list(step_ticks(pd.DataFrame({"step": list(steps)}), columns).values()) == labels
