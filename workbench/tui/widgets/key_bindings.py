"""Additional keys for all lists, trees and scrolling charts, besides the arrow keys."""

from textual.binding import Binding, BindingType

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
