"""Small helpers of the widgets: cut and wrapped texts, options, key bindings, and the message of a new size."""

from collections.abc import Callable, Iterable
from typing import TypedDict

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from analyzers.report import Report
from workbench.colours import STATUS_SIGNS, STATUSES
from workbench.console import clean
from workbench.present import below_answer
from workbench.present.table import CUT


def fitted(label: str, width: int) -> str:
    return label if len(label) <= width else label[: width - 1] + CUT


class WidgetOptions(TypedDict, total=False):
    """Keyword arguments that every widget passes on to Textual: its `id`, and CSS `classes` separated by spaces."""

    id: str
    classes: str


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


_ALWAYS = ("help", "quit")
"""The ids of the keys that are shown on a screen of any width, before the key of the command palette."""


class KeyLine(Static):
    """A footer with the keys of the focused widget; keys that do not fit are left out.

    Textual's own footer has a widget per key, which is slow to redraw.
    """

    DEFAULT_CSS = "KeyLine { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }"

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Text] = []
        self._last = Text()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._update_keys)
        self._update_keys(self.screen)
        call_on_new_size(self, self._lay_out)

    def _update_keys(self, screen: Screen[object]) -> None:
        keys: dict[str, tuple[str | None, Text]] = {}
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and enabled and binding.action not in keys:
                click = Style(meta={"@click": f"app.simulate_key('{binding.key}')"})
                key = (f" {self.app.get_key_display(binding)} ", Style(bold=True) + click)
                keys[binding.action] = binding.id, Text.assemble(key, (f"{binding.description} ", click))
        self._keys = [text for name, text in keys.values() if name not in _ALWAYS]
        always = (text for name, text in keys.values() if name in _ALWAYS)
        self._last = Text.assemble(*always, (" ^p ", "bold"), "Palette")
        self._lay_out()

    def _lay_out(self) -> None:
        room = self.size.width - self._last.cell_len
        self.update(Text.assemble(*_fitting(self._keys, room), self._last, no_wrap=True))


def _fitting(keys: Iterable[Text], width: int) -> list[Text]:
    """Return as many of the first `keys` as fit into `width` columns."""
    shown = []
    for key in keys:
        width -= key.cell_len
        if width < 0:
            break
        shown.append(key)
    return shown


class VerdictBanner(Static):
    """The verdict, its reason, the next step and the missing evidence, as text that wraps."""

    DEFAULT_CSS = "VerdictBanner { height: auto; padding: 0 1; border-left: thick $primary; }"

    def __init__(self, report: Report[object]) -> None:
        super().__init__(banner(report))
        self.styles.border_left = ("thick", STATUSES[report.verdict.status])


def banner(report: Report[object]) -> Text:
    """Return the verdict, its reason, the next step and the missing evidence as text."""
    verdict, first = report.verdict, report.lead()
    colour = STATUSES[verdict.status]
    lines = [
        Text.assemble(
            (f"{STATUS_SIGNS[verdict.status]} {clean(verdict.kind).replace('_', ' ')}  ", f"bold {colour}"),
            (clean(verdict.sentence), "bold"),
        )
    ]
    if first:
        lines += [labelled("Why ", first.why)] if first.why else []
        lines += [labelled("Next", first.next)]
    elif verdict.next:
        lines += [labelled("Next", verdict.next)]
    lines += [labelled(label, text) for label, text in below_answer(verdict)]
    return Text("\n").join(lines)


def labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}  ", "dim"), clean(text))
