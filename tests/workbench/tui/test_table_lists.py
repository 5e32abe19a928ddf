"""Lists of tables in the terminal app: two columns on broad screens, evidence beside culprits, reasons for no table."""

from terminal import app_on, press, settle, shown, until
from workbench.present.table import table
from workbench.tui.panes.hang import HangViews
from workbench.tui.widgets.tables import LISTED, TableList, highest_lines, with_rows


def test_tables_have_more_rows_than_documents_and_say_how_many_there_are():
    """A job of 657 process groups had six in the list, and nothing said that there are others."""
    short = with_rows(table("Process groups", "name", ([str(i)] for i in range(20)), 6), LISTED)
    assert (short.title, len(short.rows), short.left_out) == ("Process groups", 20, 0)
    cut = with_rows(table("Process groups", "name", ([str(i)] for i in range(657)), 6), LISTED)
    assert (cut.title, len(cut.rows)) == (f"Process groups ({LISTED} of 657)", LISTED)


def test_a_taller_screen_has_higher_tables():
    assert (highest_lines(24), highest_lines(50)) == (16, 28)


async def test_a_broad_screen_shows_evidence_beside_the_culprits(fixtures):
    """On a narrower screen the tables are below each other, and views of their own show the evidence."""
    app = app_on(fixtures / "deadlock_4ranks", "hang")
    async with app.run_test(size=(200, 50)) as pilot:
        await until(pilot, lambda: "What each rank is doing" in shown(app))
        text = shown(app)
        heads = next(line for line in text.splitlines() if "Culprits" in line)
        assert "Who waits for whom" in heads
        assert "Operations around the first difference between ranks" in text
        assert any("Stack of rank 3" in line and "Stack of ranks 0-2, waiting" in line for line in text.splitlines())
        assert "Operations of group fault_1, in which a culprit waits" in text
        await pilot.resize_terminal(100, 50)
        await settle(app, pilot)
        await until(pilot, lambda: "Operations around" not in shown(app))
        # The table of culprits is too wide for half a screen; the two below it are not.
        assert "Culprits" in (line.strip() for line in shown(app).splitlines())
        assert any("Who waits for whom" in line and "Stack of rank 3" in line for line in shown(app).splitlines())
        await pilot.resize_terminal(60, 50)
        await settle(app, pilot)
        assert "Who waits for whom" in (line.strip() for line in shown(app).splitlines())


async def test_evidence_is_loaded_once_however_often_the_screen_becomes_broad(fixtures, monkeypatch):
    """Each change of the width across the limit read the dumps again."""
    app = app_on(fixtures / "deadlock_4ranks", "hang")
    async with app.run_test(size=(100, 50)) as pilot:
        await until(pilot, lambda: "Who waits for whom" in shown(app))
        views, loads = app.query_one(HangViews), []
        load = views.load
        monkeypatch.setattr(views, "load", lambda: (loads.append(views.size.width), load()))
        for width in (200, 100, 180, 90, 200):
            await pilot.resize_terminal(width, 50)
            await settle(app, pilot)
            await until(pilot, lambda: ("Stack of ranks 0-2, waiting" in shown(app)) == (app.size.width >= 140))
        assert len(loads) == 1


async def test_steps_of_a_straggler_have_all_tables_on_a_broad_screen(fixtures):
    app = app_on(fixtures / "straggler_4ranks")
    async with app.run_test(size=(200, 50)) as pilot:
        text = await press(app, pilot, "", "5")
        assert "Steps left out of the medians" in text
        assert not app.query_one(TableList).show_vertical_scrollbar


async def test_waits_are_listed_by_rank_and_by_collective(fixtures):
    app = app_on(fixtures / "straggler_data_4ranks", "trace")
    async with app.run_test(size=(120, 40)) as pilot:
        text = await press(app, pilot, "", "v", "v", "v")
        assert "Waiting in collectives by rank" in text
        assert "gloo:all_gather" in text[text.index("Collectives with the most waiting") :]
        await pilot.resize_terminal(200, 50)
        assert "What if (the ranks played again)" in await press(app, pilot, "")


async def test_a_trace_without_waits_says_why(fixtures):
    app = app_on(fixtures / "traces" / "allocating", "trace")
    async with app.run_test(size=(120, 40)) as pilot:
        text = await press(app, pilot, "", "v", "v", "v")
        assert "Only rank 0 was traced: waiting shows in the traces of two or more ranks at the same step." in text
        assert "profiled steps" in await press(app, pilot, "v")
