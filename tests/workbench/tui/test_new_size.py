"""Test that widgets are told of their first size, and of each new one."""

from textual.app import App
from textual.widgets import Static

from terminal import app_on, press, settle, until
from workbench.tui.widgets.common import call_on_new_size
from workbench.tui.widgets.memory_timeline import MemoryTimeline


class Sized(Static):
    """Notes its sizes as Textual reports them, and as `call_on_new_size` does."""

    def __init__(self):
        super().__init__()
        self.reported, self.called = [], []

    def on_mount(self):
        call_on_new_size(self, lambda: self.called.append(self.size.width))
        self.make_map()

    def make_map(self):
        """Make a map of the screen before the next layout, as happens where another widget scrolls."""
        compositor = self.screen._compositor
        compositor._full_map_invalidated = True
        if self not in compositor.full_map:
            self.call_next(self.make_map)

    def on_resize(self):
        self.reported.append(self.size.width)


async def test_a_first_size_that_textual_does_not_report():
    app, sized = App(), Sized()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.mount(sized)
        await until(pilot, lambda: sized.called)
        assert (sized.reported, sized.called) == ([], [80])
        await pilot.resize_terminal(60, 24)
        await until(pilot, lambda: 60 in sized.called)
        sized.refresh(layout=True)
        await pilot.pause(0.2)
    assert sized.called == [80, 60]


async def test_a_widget_that_is_hidden_and_shown_again_is_not_drawn_anew():
    """The charts of each view were drawn from their files whenever the view was shown, and lost their cursor."""
    app, sized = App(), Sized()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.mount(sized)
        await until(pilot, lambda: sized.called)
        for shown in (False, True):
            sized.display = shown
            await pilot.pause(0.2)
        assert sized.called == [80]
        sized.display = False
        await pilot.resize_terminal(60, 24)
        sized.display = True
        await until(pilot, lambda: sized.called == [80, 60])


async def test_the_cursor_stays_while_another_view_is_shown(fixtures):
    app = app_on(fixtures / "leak_2ranks")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        await press(app, pilot, "2", "left", "left", "left")
        chart = app.query_one("#area", MemoryTimeline)
        at = chart.cursor
        assert at != chart.highest
        await press(app, pilot, "1", "2")
        assert chart.cursor == at
