"""The pane of two recorded runs: it opens at the first difference, and shows both sides of it."""

from recordings import FAULT, recordings

from analyzers.run import discover
from analyzers.store import Options
from terminal import press, settle
from workbench.tui.app import WorkbenchApp
from workbench.tui.subject import bisection
from workbench.tui.widgets.line_chart import LineChart


async def test_it_opens_at_the_first_difference_with_both_sides(tmp_path):
    app = WorkbenchApp(bisection(*map(discover, recordings(tmp_path)), Options()))
    async with app.run_test(size=(220, 40)) as pilot:
        await settle(app, pilot)
        screen = await press(app, pilot, "")
        operations, by_step = app.query(LineChart)
        assert (operations.cursor, by_step.cursor) == (3, 1)
        assert f"operation 4 of 1 … 8   the activation of {FAULT}: differs, 1 % (allowed 7e-07)" in screen
        assert "step 2 of 1 … 3" in screen
        row = next(line for line in screen.splitlines() if f"4  activation of {FAULT}" in line)
        assert row.split()[-6:] == ["%", "7e-07", "4", "4.04", "float32", "Attention"], row
        assert "[red]FFN" in screen


async def test_the_brackets_select_a_step_and_a_finding_leads_back(tmp_path):
    app = WorkbenchApp(bisection(*map(discover, recordings(tmp_path)), Options()))
    async with app.run_test(size=(220, 40)) as pilot:
        await settle(app, pilot)
        screen = await press(app, pilot, "left_square_bracket", "v", "right")
        assert "by operation of step 1" in screen
        assert "operation 2 of 1 … 8   the activation of embed: agrees, 0 (allowed 7e-07)" in screen
        assert "NO" not in screen
        assert "by operation of step 2" in await press(app, pilot, "1", "enter")


async def test_equal_runs_have_no_first_difference(tmp_path):
    a, _ = recordings(tmp_path)
    app = WorkbenchApp(bisection(discover(a), discover(a), Options()))
    async with app.run_test(size=(220, 40)) as pilot:
        await settle(app, pilot)
        assert "operation 1 of 1 … 8   the input of embed: agrees, 0" in await press(app, pilot, "v")


async def test_texts_of_one_chart_end_before_those_of_the_next(tmp_path):
    """They ran into each other where both charts are narrow."""
    app = WorkbenchApp(bisection(*map(discover, recordings(tmp_path)), Options()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "2")
        charts = [chart for chart in app.query(LineChart) if chart.size.height]
        for chart in charts:
            for y in (0, chart.size.height - 1):
                line = chart.render_line(y).text
                assert line.endswith(" ")
                assert line.rstrip().endswith("…") or len(line.rstrip()) < chart.size.width - 1
