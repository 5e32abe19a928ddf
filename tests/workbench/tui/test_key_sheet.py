"""The sheet of keys: what the current view can do comes first, in words of this program."""

import pytest

from terminal import app_on, press, settle, shown, until
from workbench.tui.terminal_app import EVERYWHERE, KeySheet, key_sections
from workbench.watch.app import WatchApp


@pytest.mark.parametrize(
    ("view", "keys"),
    [
        ("1", {"Evidence": "⏎", "Next view": "v"}),
        ("2", {"Earlier": "← h", "Zoom in": "+ =", "Next rank": "]", "Later snapshot": ".", "Mark": "space"}),
        ("3", {"Next group": "b", "Next view": "v"}),
    ],
)
async def test_the_keys_of_the_view_come_first(oom, view, keys):
    app = app_on(oom)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(app, pilot, "", view)
        first, *others = key_sections(app.screen)
        assert first.title == "This view"
        assert first.rows.items() >= keys.items()
        assert others[0].title == EVERYWHERE
        assert others[0].rows["View with this number"] == "1 … 7"
        assert others[0].rows["Quit"] == "q"
        assert others[0].rows["Next pane"] == "tab"


async def test_the_same_key_opens_and_closes_the_sheet(oom):
    """The view behind it keeps its layout, and gets its keys back."""
    app = app_on(oom)
    async with app.run_test(size=(80, 24)) as pilot:
        before = await press(app, pilot, "", "2")
        focused = app.screen.focused
        for closing in ("question_mark", "escape", "q"):
            text = await press(app, pilot, "question_mark")
            assert text.index("This view") < text.index("Earlier snapshot")
            assert "Scroll Up" not in text
            assert await press(app, pilot, closing) == before
        assert app.screen.focused is focused
        assert app.is_running


async def test_the_sheet_can_be_read_on_a_tiny_screen(oom):
    app = app_on(oom)
    async with app.run_test(size=(40, 12)) as pilot:
        text = await press(app, pilot, "", "1", "question_mark")
        assert "This view" in text
        for _ in range(40):
            await pilot.press("down")
        await settle(app, pilot)
        assert isinstance(app.screen, KeySheet)
        assert "Page Down" in shown(app)


async def test_the_watching_app_has_a_sheet(stuck):
    app = WatchApp(stuck.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.job is not None)
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Sort by trouble" in shown(app)
