"""Legends and values below charts of the terminal app: nothing is cut on a screen of 80 columns."""

import pandas as pd
from rich.text import Text
from textual.app import App, ComposeResult

from terminal import app_on, press, shown
from workbench.present.parity_lines import Lines
from workbench.tui.widgets.common import wrapped
from workbench.tui.widgets.grids import legend
from workbench.tui.widgets.line_chart import LineChart


async def test_the_legend_of_the_block_map_is_wrapped(oom):
    """A click finds the block below all lines of the legend."""
    app = app_on(oom)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await press(app, pilot, "", "2", "v", "v")
        assert "C communication  T temporary" in text
        lines = text.splitlines()
        row = next(y for y, line in enumerate(lines) if "184.0 MiB" in line and " used" in line)
        await pilot.click(offset=(lines[row].index("A"), row))
        assert "history of address" in await press(app, pilot, "")


def test_a_legend_that_fits_is_one_line():
    assert legend(["activations", "inputs"], 60).plain == "· free  A activations  I inputs"


def test_no_piece_is_split():
    pieces = [Text("step 3\nof 6"), Text("● 1.25"), Text("a name that is longer than the line")]
    assert wrapped(pieces, 12).plain == "step 3\nof 6  ● 1.25\na name that is longer than the line"


async def test_a_narrow_chart_keeps_the_values_of_all_runs():
    """The signs have the colours of the lines; the values have the colour of text, readable in every theme."""

    class Drawn(App[None]):
        def compose(self) -> ComposeResult:
            yield LineChart()

    app = Drawn()
    async with app.run_test(size=(38, 12)) as pilot:
        chart = app.query_one(LineChart)
        lines = Lines("Loss by step", pd.DataFrame({name: [6.199999] for name in "abc"}, index=[1]))
        chart.show(lines)
        await pilot.pause()
        assert [sign in shown(app) for sign in ("● 6.199999", "▲ 6.199999", "■ 6.199999")] == [True] * 3
        last = chart.render_line(11)
        signs = [segment.style.color.name for segment in last if segment.text == "■"]
        assert signs == [lines.colour(2)]
        assert not any(segment.style.dim for segment in last if "6.19" in segment.text)
