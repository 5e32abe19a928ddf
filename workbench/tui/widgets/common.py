"""Small helpers of the widgets: cut and wrapped texts, options, key bindings, and the message of a new size."""

from collections.abc import Callable, Iterable
from typing import TypedDict

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from workbench.present.names import CUT

# Cut texts that are too long for the screen.


def fitted(label: str, width: int) -> str:
    """Return a label cut to at most `width` characters; a sign at the end of a cut label shows that text is missing."""
    return label if len(label) <= width else label[: width - 1] + CUT


# Options that every widget passes on to Textual.


class WidgetOptions(TypedDict, total=False):
    """Keyword arguments that every widget passes on to Textual: its `id`, and CSS `classes` separated by spaces."""

    id: str
    classes: str


# Call a function whenever the size of a widget has changed.


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


# Wrap short texts, such as the items of a legend, into lines without splitting a text.

_GAP = "  "


def wrapped(pieces: Iterable[Text], width: int, gap: str = _GAP) -> Text:
    r"""Return the pieces one after the other, in lines of at most `width` characters; only a longer piece is wider.

    Textual itself would separate a name from its value, even at a no-break space.

    >>> wrapped([Text("a 1"), Text("b 2"), Text("c 3")], 8).plain
    'a 1  b 2\nc 3'
    """
    text, used = Text(), 0
    for piece in pieces:
        fits = used + len(gap) + piece.cell_len <= width
        if text:
            text.append(gap if fits else "\n")
        used = used + len(gap) if text and fits else 0
        text.append(piece)
        # A heading may have several lines of its own.
        used += cell_len(piece.plain.rpartition("\n")[2])
    return text


# Additional keys for all lists, trees and scrolling charts, besides the arrow keys.

CURSOR_KEYS: list[BindingType] = [
    Binding("j", "cursor_down", "Down", id="list.down", show=False),
    Binding("k", "cursor_up", "Up", id="list.up", show=False),
    Binding("h", "scroll_left", "Left", id="list.left", show=False),
    Binding("l", "scroll_right", "Right", id="list.right", show=False),
    Binding("g", "scroll_home", "First", id="list.first", show=False),
    Binding("G", "scroll_end", "Last", id="list.last", show=False),
]
"""The keys of widgets that have a cursor."""
SCROLL_KEYS: list[BindingType] = [
    Binding("j", "scroll_down", "Down", id="scroll.down", show=False),
    Binding("k", "scroll_up", "Up", id="scroll.up", show=False),
    *CURSOR_KEYS[2:],
]
"""The keys of widgets that can only be scrolled."""
SEARCH_KEYS: list[BindingType] = [
    Binding("n", "next_match(1)", "Next match", id="found.next", show=False),
    Binding("N", "next_match(-1)", "Previous match", id="found.previous", show=False),
]
"""The keys of widgets that can be searched."""
