"""The keys that every list, tree and scrolled picture has beside its arrows."""

from textual.binding import Binding, BindingType

CURSOR: list[BindingType] = [
    Binding("j", "cursor_down", "Down", id="list.down", show=False),
    Binding("k", "cursor_up", "Up", id="list.up", show=False),
    Binding("h", "scroll_left", "Left", id="list.left", show=False),
    Binding("l", "scroll_right", "Right", id="list.right", show=False),
    Binding("g", "scroll_home", "First", id="list.first", show=False),
    Binding("G", "scroll_end", "Last", id="list.last", show=False),
]
"""Of what has a cursor."""
SCROLLED: list[BindingType] = [
    Binding("j", "scroll_down", "Down", id="scroll.down", show=False),
    Binding("k", "scroll_up", "Up", id="scroll.up", show=False),
    *CURSOR[2:],
]
"""Of what is only scrolled."""
FOUND: list[BindingType] = [
    Binding("n", "found(1)", "Next match", id="found.next", show=False),
    Binding("N", "found(-1)", "Previous match", id="found.previous", show=False),
]
"""Of what can be searched."""
