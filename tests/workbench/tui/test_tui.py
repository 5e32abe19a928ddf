"""Use the terminal app by keys."""

import gc
import re

import numpy as np
import pandas as pd
import pytest
from textual.app import App
from textual.widgets import Static, TabbedContent

from analyzers import words as units
from analyzers.store import Options
from terminal import app_on, settle, shown
from workbench.tui.app import WorkbenchApp, open_app
from workbench.tui.panes.memory import MemoryViews
from workbench.tui.subject import ViewTabs, subject_of
from workbench.tui.widgets.grids import FREE, LABEL_WIDTH, SEGMENTS_AT_MOST, BlockMap, CollectiveMatrix
from workbench.tui.widgets.memory_timeline import MemoryTimeline
from workbench.tui.widgets.trees import MemoryTree

SIZES = [(80, 24), (200, 50)]


@pytest.mark.parametrize("size", SIZES)
async def test_home_tells_verdict_why_and_next(oom, size):
    app = app_on(oom)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        text = " ".join(shown(app).split())
        assert "Rank 1 ran out of memory at step 6" in text
        assert "Next" in text
        assert app.report.verdict.ranks == [1]


@pytest.mark.parametrize("size", SIZES)
async def test_the_timeline_marks_the_failure(oom, size):
    """The peak and the failed allocation are marked above the area, and the cursor's categories listed beside it."""
    app = app_on(oom)
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        await pilot.press("2")
        await settle(app, pilot)
        area = app.query_one(MemoryTimeline)
        marks = area.render_line(0).text
        assert "✗" in marks
        assert any(ink in area.render_line(area.size.height - 3).text for ink in "▁▂▃▄▅▆▇█")
        assert "activations" in str(app.query_one("#categories", Static).render())


async def test_the_cursor_moves_and_the_window_zooms(oom):
    app = app_on(oom)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await pilot.press("2")
        await settle(app, pilot)
        area = app.query_one(MemoryTimeline)
        before, whole = area.cursor, area.render_line(area.size.height - 1).text
        await pilot.press("left", "left")
        assert area.cursor == before - 2
        await pilot.press("plus")
        await settle(app, pilot)
        zoomed = area.render_line(area.size.height - 1).text
        assert zoomed != whole
        await pilot.press("0")
        await settle(app, pilot)
        assert area.render_line(area.size.height - 1).text == whole


async def test_brackets_change_the_rank(oom):
    app = app_on(oom)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await pilot.press("2")
        await settle(app, pilot)
        first = str(app.query_one("#memory-title", Static).render())
        await pilot.press("]")
        await settle(app, pilot)
        second = str(app.query_one("#memory-title", Static).render())
        assert "rank 1" in first
        assert "rank 0" in second


@pytest.mark.parametrize("size", SIZES)
async def test_the_matrix_has_a_hole_where_the_culprit_is_missing(stuck, size):
    app = app_on(stuck, "hang")
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        assert app.query_one(TabbedContent).active == "hang"
        matrix = app.query_one(CollectiveMatrix)
        rows = [matrix.render_line(y).text for y in range(matrix.size.height)]
        assert "○" in next(row for row in rows if row.startswith("0"))
        assert "✗" in next(row for row in rows if row.startswith("1"))


async def test_a_view_without_data_says_so(stuck):
    app = app_on(stuck, "hang")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        await pilot.press("2")
        await pilot.pause()
        assert "no memory data" in shown(app)


async def test_a_run_that_cannot_be_read_is_told(tmp_path):
    from analyzers.run import discover

    broken = tmp_path / "snapshot.pickle"
    broken.write_bytes(b"\x80\x04}\x94(\x8c\x08segments\x94")
    app = app_on(discover(broken))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        text = shown(app)
        assert "error:" in text
        assert "hint:" in text
        assert not app.query(ViewTabs)


async def test_hostile_text_is_shown_as_text(tmp_path):
    """Markup and escapes in an artefact's name are shown as plain letters."""
    import shutil
    from pathlib import Path

    from analyzers.run import discover

    source = Path(__file__).parents[2] / "fixtures" / "stuck_2ranks"
    place = tmp_path / "[red]run[/nope]"
    shutil.copytree(source, place)
    app = app_on(discover(place), "hang")
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(app, pilot)
        await pilot.press("1")
        await pilot.pause()
        assert app.query(ViewTabs)


async def evidence(app, pilot, *keys):
    """Return the memory view after some keys, with everything loaded."""
    await settle(app, pilot)
    for key in ("2", *keys):
        await pilot.press(key)
        await pilot.pause(0.2)
        await settle(app, pilot)
    return shown(app)


@pytest.mark.parametrize("size", SIZES)
async def test_the_tree_adds_up_to_what_is_alive_at_the_cursor(oom, size):
    app = app_on(oom)
    async with app.run_test(size=size) as pilot:
        text = await evidence(app, pilot, "v")
        assert "tree by module after entry" in text
        area = app.query_one(MemoryTimeline)
        alive = int(area.instants["allocated"].iloc[area.cursor])
        assert f"{units.size(alive)} allocated" in text
        assert "layers" in text
        assert "tree by line" in await evidence(app, pilot, "b")


async def test_search_opens_the_tree_down_to_the_match(oom):
    app = app_on(oom)
    async with app.run_test(size=(120, 40)) as pilot:
        await evidence(app, pilot, "v", "slash", *"wq", "enter")
        holders = app.query_one(MemoryTree)
        assert "wq" in str(holders.cursor_node.label)
        first = holders.cursor_node
        await pilot.press("n")
        await pilot.pause()
        assert holders.cursor_node is not first
        await pilot.press("N")
        await pilot.pause()
        assert holders.cursor_node is first


@pytest.mark.parametrize("size", SIZES)
async def test_blocks_are_drawn_by_segment(oom, size):
    app = app_on(oom)
    async with app.run_test(size=size) as pilot:
        await evidence(app, pilot, "v", "v")
        head, *lines = (app.query_one(BlockMap).render_line(y).text for y in range(3))
        first = next(line for line in lines if "MiB" in line)  # the legend may have a second line
        assert head.startswith("· free  A activations  ")  # the category with the most cells
        assert "% used" in first
        assert "A" in first  # the activations that filled the memory


async def test_ranks_stand_side_by_side(oom):
    app = app_on(oom)
    async with app.run_test(size=(120, 40)) as pilot:
        text = await evidence(app, pilot, "V")
        assert "bytes at the peak of each rank" in text
        assert app.query_one("#ranks").row_count == 2


async def test_focus_gives_the_evidence_the_whole_height(oom):
    app = app_on(oom)
    async with app.run_test(size=(80, 24)) as pilot:
        await evidence(app, pilot, "v")
        before = app.query_one(MemoryTree).size.height
        await evidence(app, pilot, "f")
        assert app.query_one(MemoryTree).size.height > before
        await evidence(app, pilot, "escape")
        assert app.query_one(MemoryTree).size.height == before


def test_what_is_loaded_is_never_looked_through_for_garbage(oom, monkeypatch):
    """A garbage collection while the app runs has little to search; otherwise it would delay a key."""
    held = []
    monkeypatch.setattr(
        WorkbenchApp, "run", lambda _app, **_how: held.append((gc.get_freeze_count(), len(gc.get_objects())))
    )
    try:
        open_app(subject_of(oom, "incident", Options()))
    finally:
        gc.unfreeze()
    [(frozen, left)] = held
    assert frozen > 10 * left


class MapApp(App):
    """An app that shows nothing but a map of segments."""

    def compose(self):
        yield BlockMap()


async def test_a_map_of_very_many_segments_shows_the_largest(tmp_path):
    """Each line has an array of cells: without a limit, a hundred thousand lines took a minute and 1.7 GiB."""
    many = 100_000
    numbers = np.arange(many)
    segments = pd.DataFrame({"address": numbers << 21, "bytes": 512 + numbers})
    blocks = pd.DataFrame(
        {"segment": numbers << 21, "address": numbers << 21, "requested": 512, "category": "activations"}
    )
    app = MapApp()
    async with app.run_test(size=(120, 40)) as pilot:
        shown = app.query_one(BlockMap)
        shown.show(segments, blocks)
        await pilot.pause()
        assert shown.virtual_size.height == SEGMENTS_AT_MOST + 2
        shown.scroll_end(animate=False)
        await pilot.pause()
        assert (
            f"{many - SEGMENTS_AT_MOST:,} smaller segments not shown" in shown.render_line(shown.size.height - 1).text
        )


async def test_a_click_on_a_block_tells_its_life(oom):
    """A click on the first filled cell of the largest segment shows that block's history."""
    app = app_on(oom)
    async with app.run_test(size=(200, 50)) as pilot:
        await settle(app, pilot)
        await pilot.press("2")
        await settle(app, pilot)
        evidence = app.query_one(MemoryViews)
        await evidence.turn_to("blocks")
        await settle(app, pilot)
        cells = app.query_one(BlockMap).render_line(1).text[LABEL_WIDTH:]
        at = next(place for place, letter in enumerate(cells) if letter not in FREE)
        await pilot.click(BlockMap, offset=(LABEL_WIDTH + at, 1))
        await settle(app, pilot)
        assert evidence.view == "life"
        assert re.search("history of address 0x[0-9a-f]+", evidence.title())
        assert evidence.shown.row_count > 0
