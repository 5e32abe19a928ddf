"""A sheet over the screen that lists the keys that work there; the keys of the current view come first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from workbench.tui.widgets.common import CURSOR_KEYS, SCROLL_KEYS, SEARCH_KEYS

EVERYWHERE = "Everywhere"
_TWO_COLUMNS = 76
"""The screen width, in columns, from which on the keys of the view are beside those that work everywhere."""
_MARGINS = 5
"""The columns of the frame around the keys, with its padding and a scroll bar."""
_VIEW_NUMBERS = "view."
"""The prefix of the ids of keys that show a view by its number."""
_MOVES = "Lists and text"
WORDS = {"app.focus_next": "Next pane", "app.focus_previous": "Previous pane", "command_palette": "Search all commands"}
"""{action of one of Textual's own keys: words for it in this program}; its other keys are left out."""
_MOVE_IDS = {key.id for key in (*CURSOR_KEYS, *SCROLL_KEYS, *SEARCH_KEYS) if isinstance(key, Binding)}


class Section(NamedTuple):
    """A part of the sheet: a title, and the keys below it as {description: keys}."""

    title: str
    rows: dict[str, str]


class KeySheet(ModalScreen[None]):
    """The sheet that lists the keys; Esc, `q` or the key that opened the sheet closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,escape,q", "dismiss", "Back", id="keys.back")]
    DEFAULT_CSS = """
    KeySheet { align: center middle; }
    KeySheet VerticalScroll {
        max-width: 100%; height: auto; max-height: 100%; border: round $foreground; padding: 0 1; background: $surface;
    }
    KeySheet Static { width: 100%; height: auto; }
    """

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        with VerticalScroll() as sheet:
            sheet.border_title, sheet.border_subtitle = "Keys", "? or esc: back"
            yield Static()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        keys = columns_of(self._sections, wide=self.app.size.width >= _TWO_COLUMNS)
        sheet = self.query_one(VerticalScroll)
        sheet.styles.width = Measurement.get(self.app.console, self.app.console.options, keys).maximum + _MARGINS
        sheet.query_one(Static).update(keys)


def columns_of(sections: Sequence[Section], *, wide: bool) -> Table:
    """Return the sections one below the other; on a `wide` screen, the keys that work everywhere are at the right."""
    grid = Table.grid(padding=(0, 3))
    if wide:
        here = [section for section in sections if section.title != EVERYWHERE]
        grid.add_row(rows_of(here), rows_of(section for section in sections if section.title == EVERYWHERE))
    else:
        grid.add_row(rows_of(sections))
    return grid


def rows_of(sections: Iterable[Section]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    for number, section in enumerate(sections):
        if number:
            table.add_row()
        table.add_row("", Text(section.title, style="underline"))
        for text, keys in section.rows.items():
            table.add_row(Text(keys), Text(text))
    return table


def key_sections(screen: Screen[object]) -> list[Section]:
    """Return the keys that work on a screen in three sections: in the current view, everywhere, and in lists."""
    view, everywhere, moves = dict[str, list[str]](), dict[str, list[str]](), dict[str, list[str]]()
    texts = _descriptions(screen.active_bindings)
    for node, binding, enabled, _ in screen.active_bindings.values():
        is_known = _is_own(binding) or not _is_general(node) or binding.action in WORDS
        if not enabled or binding.system or not is_known:
            continue
        rows = everywhere if _is_general(node) else view if _is_of_view(node, binding) else moves
        is_number = (binding.id or "").startswith(_VIEW_NUMBERS)
        text = "View with this number" if is_number else texts[binding.action]
        rows.setdefault(text, []).append(screen.app.get_key_display(binding))
    found = (("This view", view), (EVERYWHERE, everywhere), (_MOVES, moves))
    return [
        Section(title, {text: " ".join(short(keys)) for text, keys in rows.items()}) for title, rows in found if rows
    ]


def _descriptions(bindings: Mapping[str, ActiveBinding]) -> dict[str, str]:
    """Return {action: what it does}; for keys of this program and of Textual with the same action, ours counts."""
    texts: dict[str, str] = {}
    for _, binding, _, _ in bindings.values():
        if _is_own(binding):
            texts[binding.action] = binding.description
        else:
            texts.setdefault(binding.action, WORDS.get(binding.action, binding.description))
    return texts


def short(keys: Sequence[str]) -> Sequence[str]:
    once = list(dict.fromkeys(keys))
    return [once[0], "…", once[-1]] if len(once) > 2 and all(key.isdigit() for key in once) else once


def _is_general(node: DOMNode) -> bool:
    return isinstance(node, Screen) or node.parent is None


def _is_own(binding: Binding) -> bool:
    """Return whether this program, and not Textual, defines a key; only our keys have an id."""
    return binding.id is not None


def _is_of_view(node: DOMNode, binding: Binding) -> bool:
    """Return whether a key is special to a view; keys that only move in a list are not."""
    return _is_own(binding) and not _is_general(node) and binding.id not in _MOVE_IDS
