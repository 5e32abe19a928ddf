"""The events of text logs in the terminal app, with the log lines around the selected event."""

from pathlib import Path

from log_cases import COMPOSED
from terminal import app_on, press, settle, shown
from workbench.tui.widgets.tables import Grid

RECORDED = Path(__file__).parents[2] / "analyzers" / "logs" / "recorded"


async def test_the_cursor_shows_the_lines_around_an_event():
    app = app_on(RECORDED / "exception.log")
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "7")
        assert "KeyError: 'labels'" in shown(app)
        assert 'tokens["labels"]' in shown(app)
        await press(app, pilot, "down")
        assert "Connection closed by peer" in app.query_one("#log-events", Grid).text_at_cursor()
        assert "dist.all_reduce(tensor)" in shown(app)


async def test_a_log_without_steps_opens_at_its_events(tmp_path):
    case = next(case for case in COMPOSED if case.name == "duplicate_gpu")
    log = tmp_path / "slurm-17.out"
    log.write_text(case.text.replace("Last error", "[bold red]Last[/] \x1b[31merror"))
    app = app_on(log)
    async with app.run_test(size=(160, 40)) as pilot:
        await settle(app, pilot)
        assert "[bold red]Last[/] error" in shown(app)
        await press(app, pilot, "1")
        assert "use the same GPU" in shown(app)


async def test_the_pane_opens_at_the_event_of_the_culprit_with_room_for_its_lines(fixtures):
    """The other rank only lost its connection; two events need no half of the screen."""
    app = app_on(fixtures / "oom_2ranks")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "7")
        assert "host out of memory" in app.query_one("#log-events", Grid).text_at_cursor()
        assert app.query_one("#log-events", Grid).size.height <= 4
        title = next(line for line in shown(app).splitlines() if "around line" in line)
        assert title.strip().startswith("…")
        assert "1/error.json, around line 1" in title
