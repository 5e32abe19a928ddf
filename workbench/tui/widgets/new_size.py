"""Call a function whenever a widget has a new size."""

from collections.abc import Callable

from textual.geometry import Size
from textual.widget import Widget


def call_on_new_size(widget: Widget, act: Callable[[], None]) -> None:
    """Call `act` after the first layout of a widget, and after each layout that gives it another size.

    To be called when the widget is mounted. `on_resize` is not enough for what cannot be drawn without a size: Textual
    sends no `Resize` if, between mounting and layout, somebody asked for the region of any widget, because it compares
    the layout with the map that was made for that question.
    """
    known = Size()

    def compare() -> None:
        nonlocal known
        # A widget of a hidden view has no size; shown again it has its old one, and need not be drawn anew.
        if widget.size and widget.size != known:
            known = widget.size
            act()

    widget.screen.screen_layout_refresh_signal.subscribe(widget, lambda _screen: compare())
    widget.call_after_refresh(compare)
