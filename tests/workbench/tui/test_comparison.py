"""The comparison of two runs in the terminal: its chart, its title, and its keys."""

from pathlib import Path

import pytest

from analyzers.run import discover
from analyzers.store import Options
from terminal import press, settle, shown
from workbench.present.table import fitted_title, short_names
from workbench.present.tables.comparison import waterfall_lines
from workbench.tui import subject
from workbench.tui.app import WorkbenchApp
from workbench.tui.panes.compare import CAPTION

PARTS = [("profiler", -1.0), ("data_wait", 0.25), ("h2d", 0.0001)]


def comparison(fixtures):
    runs = (discover(fixtures / name) for name in ("oom_2ranks", "straggler_data_2ranks"))
    return WorkbenchApp(subject.comparison(*runs, Options()))


def test_each_bar_begins_where_the_one_above_ends():
    """A part that nobody would see has no line; the bars lead from one total to the other."""
    a, profiler, data, b = (line.plain for line in waterfall_lines(PARTS, (2.0, 1.25), 60))
    begin = len(a) - len(a.lstrip()) + len("run A ")
    assert a.count("█") == a.rindex("█") - begin + 1
    assert profiler.rindex("█") == a.rindex("█")
    assert data.index("█") == profiler.index("█")
    assert b.rindex("█") == data.rindex("█")
    assert profiler.endswith("-1.00 s")
    assert all(len(line) <= 60 for line in (a, profiler, data, b))


@pytest.mark.parametrize(
    ("roots", "width", "title"),
    [
        (["jobs/outputs/demo-oom"], 40, "jobs/outputs/demo-oom"),
        (["jobs/outputs/demo-oom"], 10, "…/demo-oom"),
        (["jobs/outputs/demo-oom"], 6, "…o-oom"),
        (["jobs/first/outputs", "jobs/second/outputs"], 40, "first/outputs and second/outputs"),
    ],
)
def test_a_title_without_room_keeps_the_ends_of_paths(roots, width, title):
    assert fitted_title([Path(root) for root in roots], width) == title


def test_names_of_the_same_folder_are_equal():
    assert short_names([Path("a/b"), Path("a/b")]) == ["a/b", "a/b"]
    assert short_names([Path()]) == ["."]


async def test_the_chart_is_beside_the_measures_or_a_view_of_its_own(fixtures):
    """With the view of the chart, the keys of the pane still work."""
    app = comparison(fixtures)
    async with app.run_test(size=(200, 50)) as pilot:
        await settle(app, pilot)
        assert CAPTION in shown(app)
        assert "run A" in shown(app)
    app = comparison(fixtures)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert CAPTION not in shown(app)
        assert "oom_2ranks and straggler_data_2ranks" in shown(app).splitlines()[0]
        screen = await press(app, pilot, "v")
        assert "how the mean step changed" in screen
        assert "run B" in screen
        assert "Next view" in screen
        assert "memory by module" in await press(app, pilot, "v")


async def test_the_head_of_a_number_is_above_its_last_digit(fixtures):
    app = comparison(fixtures)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        lines = shown(app).splitlines()
        head = next(line for line in lines if "measure " in line)
        first = next(line for line in lines if "median step time" in line)
        assert first[: head.index("change") + len("change")].endswith("%")


async def test_the_help_has_the_keys_of_the_views_that_exist(fixtures):
    app = comparison(fixtures)
    async with app.run_test(size=(120, 50)) as pilot:
        await settle(app, pilot)
        screen = await press(app, pilot, "question_mark")
        assert "1 2  View with this number" in screen


async def test_the_home_view_shows_what_changed(fixtures):
    app = comparison(fixtures)
    async with app.run_test(size=(200, 50)) as pilot:
        text = await press(app, pilot, "", "1")
        assert "How the mean step changed, by phase" in text
        assert "run B █" in text
        await pilot.click("#picture")
        assert "measures of both runs" in await press(app, pilot, "")
