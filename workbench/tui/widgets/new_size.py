"""Call a function whenever the size of a widget has changed."""

from collections.abc import Callable

from textual.geometry import Size
from textual.widget import Widget


def call_on_new_size(widget: Widget, act: Callable[[], None]) -> None:
    """Call `act` after the first layout of a widget, and after each layout that changes the widget's size.

    Use this function in `on_mount`, for a widget whose content depends on its size. `on_resize` is not enough: Textual
    sends no `Resize` after the first layout if some code has read the region of any widget between mounting and layout.
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
