"""A list over the screen to pick one of many items, such as a rank or a process group; typing filters the list."""

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from workbench.console import clean

_FRAME_LINES = 3
"""The number of lines of the frame around the choices, and of the input above them."""
CHOICES_AT_MOST = 2000
"""The most choices that are listed; typing finds the others."""


class Picker(ModalScreen[int | None]):
    """A list of texts, of which the user picks one; the result is its index, or None if the user goes back.

    `current` is the index of the item that the app shows now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Back", id="picker.back"),
        Binding("down", "move(1)", "Down", id="picker.down", show=False),
        Binding("up", "move(-1)", "Up", id="picker.up", show=False),
    ]
    DEFAULT_CSS = """
    Picker { align: center middle; }
    Picker Vertical {
        width: 80%; min-width: 36; max-width: 100; max-height: 80%; border: round $foreground;
        background: $surface;
    }
    Picker Input, Picker Input:focus { border: none; height: 1; padding: 0 1; }
    Picker OptionList { border: none; height: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self, title: str, texts: Sequence[str], current: int) -> None:
        super().__init__()
        self._title, self._texts, self._current = title, [clean(text) for text in texts], current

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title, frame.border_subtitle = self._title, "enter: show   esc: back"
            frame.styles.height = len(self._texts) + _FRAME_LINES
            yield Input(placeholder="type to find")
            yield OptionList()

    def on_mount(self) -> None:
        # The list keeps no focus: the keys of letters belong to the input.
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, wanted: str) -> None:
        """List the items that match `wanted`, and select the first; if `wanted` is empty, select the current item."""
        options = self.query_one(OptionList)
        found = matching(self._texts, wanted)[:CHOICES_AT_MOST]
        options.clear_options()
        options.add_options(Option(Text(self._texts[index]), id=str(index)) for index in found)
        options.highlighted = found.index(self._current) if not wanted and self._current in found else 0
        # The list has no height before it is laid out.
        self.call_after_refresh(options.scroll_to_highlight)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        # The app would search the view behind for the text.
        event.stop()
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(int(event.option.id or 0))


def matching(texts: Sequence[str], wanted: str) -> list[int]:
    """Return the indices of the texts that contain all words of `wanted`.

    Texts that begin with `wanted` come first, then texts that contain its words as whole words.

    >>> matching(["rank 13", "rank 3", "rank 30"], "3")
    [1, 0, 2]
    """
    words, start = wanted.casefold().split(), wanted.casefold()
    lower = [text.casefold() for text in texts]
    found = [index for index, text in enumerate(lower) if all(word in text for word in words)]
    whole = [set(words) <= set(re.findall(r"[^\s,]+", text)) for text in lower]
    return sorted(found, key=lambda index: (not lower[index].startswith(start), not whole[index]))


def pick(widget: Widget, title: str, texts: Sequence[str], current: int, show: Callable[[int], None]) -> None:
    """Let the user pick one of `texts`, and call `show` with its index; do nothing if there is only one text."""

    def picked(index: int | None) -> None:
        if index is not None:
            show(index)

    if len(texts) < 2:
        widget.notify(f"there is only one {title}", markup=False)
    else:
        widget.app.push_screen(Picker(title, texts, current), picked)
