"""The parity pane: a finding leads to its step, and names from a file are shown as plain text."""

import json
from pathlib import Path

import pandas as pd
import pytest
from meshes import meshes

from analyzers.parity.report import FILE
from terminal import app_on, press, settle
from workbench.present.parity_lines import Lines
from workbench.tui.widgets.line_chart import LineChart, connected, sign_places


async def test_a_finding_leads_to_its_step(tmp_path: Path) -> None:
    root = meshes(tmp_path)
    runs = json.loads((root / FILE).read_text())
    runs["runs"][1]["name"] = "[red]tp=2\x1b[31m|<b>"
    (root / FILE).write_text(json.dumps(runs))
    app = app_on(root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        screen = await press(app, pilot, "1", "enter")
        assert [chart.cursor for chart in app.query(LineChart)] == [2, 2]
        assert "step 3 of 1 … 6" in screen
        assert "[red]tp=2" in screen
        assert "\x1b[31m" not in screen
        assert "Gradient norm by step" in await press(app, pilot, "right_square_bracket")
        assert "step 2 of 1 … 6" in await press(app, pilot, "left")


@pytest.mark.parametrize("values", [[], [float("nan")], [float("inf"), 1.0], [3.0, 3.0]])
async def test_values_that_are_hard_to_draw(values: list[float]) -> None:
    from textual.app import App, ComposeResult

    class Drawn(App[None]):
        def compose(self) -> ComposeResult:
            yield LineChart()

    app = Drawn()
    async with app.run_test(size=(60, 12)) as pilot:
        chart = app.query_one(LineChart)
        chart.show(Lines("title", pd.DataFrame({"a": values}, index=range(1, len(values) + 1))))
        chart.move(5)
        await pilot.pause()
        assert chart.cursor == max(0, len(values) - 1)


def test_equal_lines_take_turns_with_their_signs() -> None:
    points = [(10 * row, 4) for row in range(12)]
    places = [set(sign_places(points, number, 3)) for number in range(3)]
    assert all(places)
    assert not places[0] & places[1]
    assert not places[1] & places[2]
    assert list(connected([(0, 0), None, (4, 4)])) == [(0, 0), (4, 4)]
    assert set(connected([(0, 0), (2, 4)])) == {(0, 0), (0, 1), (1, 2), (2, 3), (2, 4)}
