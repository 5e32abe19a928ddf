"""What all terminal apps share: colours for light and dark themes, and errors that end the command as usual."""

import gc
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.color import Color
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.events import Event, InputEvent
from textual.filter import LineFilter
from textual.screen import ModalScreen, Screen
from textual.theme import Theme
from textual.widgets import Static

from workbench.tui.readable_colours import LightShades, ReadableColours
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


_SELDOM = 1 << 30
"""How often Python collects younger objects before a full search of its own: practically never."""
IDLE_S = 3.0
DUE = 10
"""How many collections of younger objects make a full search due, as in Python's own setting."""


def leave_searches_to_idle_times() -> None:
    """Let Python start no full search for garbage by itself, and never search what is loaded by now."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)


class IdleSearch:
    """Starts a full search for garbage once the user has done nothing for `IDLE_S` seconds."""

    def __init__(self) -> None:
        self._last_input = time.monotonic()

    def note_input(self) -> None:
        """Take down that the user has pressed a key or moved the mouse."""
        self._last_input = time.monotonic()

    def search_if_idle(self) -> None:
        if gc.get_count()[2] >= DUE and time.monotonic() - self._last_input > IDLE_S:
            gc.collect()


BLACK, WHITE = "#000000", "#ffffff"
_HIGH_CONTRAST = "high-contrast"
"""The prefix of the names of themes with high contrast."""


def _high_contrast(name: str, ink: str, page: str, *, dark: bool) -> Theme:
    """Return a theme that draws text in the colour `ink` on `page`, without other colours and without faint text."""
    variables = {"text-muted": ink, "text-disabled": ink, "footer-background": page, "footer-foreground": ink}
    return Theme(
        name,
        primary=ink,
        secondary=ink,
        accent=ink,
        foreground=ink,
        background=page,
        surface=page,
        panel=page,
        boost=page,
        dark=dark,
        variables=variables,
    )


THEMES = (
    _high_contrast(_HIGH_CONTRAST, WHITE, BLACK, dark=True),
    _high_contrast(f"{_HIGH_CONTRAST}-light", BLACK, WHITE, dark=False),
)


def neutral(variables: Mapping[str, str]) -> dict[str, str]:
    """Return CSS variables that draw the selection without hue, because hues stand for data and severity.

    `variables` are those of the theme. Return nothing if the theme leaves its colours to the terminal, as themes of 16
    colours do.
    """
    ink, page = variables["foreground"], variables["background"]
    if not (ink.startswith("#") and page.startswith("#")):
        return {}
    blurred = Color.parse(page).blend(Color.parse(ink), 0.2).hex
    return {
        "block-cursor-background": ink,
        "block-cursor-foreground": page,
        "block-cursor-blurred-background": blurred,
        "scrollbar": blurred,
        "scrollbar-hover": Color.parse(page).blend(Color.parse(ink), 0.35).hex,
        "scrollbar-active": ink,
    }


class NoFaintText(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - of the base
        whole = Style(dim=False)
        return [
            Segment(text, style + whole if style and style.dim else style, control) for text, style, control in segments
        ]


Result = TypeVar("Result")
_SEARCH_EVERY_S = 1.0
ON_DARK = (ReadableColours(BLACK),)
ON_LIGHT = (LightShades(), ReadableColours(WHITE))
"""The colour filters for themes with a dark background and with a light one; Textual caches lines by filter."""


class TerminalApp(App[Result]):
    """A Textual app with colours for light and dark themes, whose exceptions are raised again by `run_app`.

    Textual itself would print an exception with the values of all local variables.
    """

    def __init__(self) -> None:
        super().__init__()
        self._idle_search = IdleSearch()
        for theme in THEMES:
            self.register_theme(theme)
        # TEXTUAL_THEME may name one of them, and the style sheet was made before they were known.
        self.stylesheet.set_variables(self.get_css_variables())

    def on_mount(self) -> None:
        self.set_interval(_SEARCH_EVERY_S, self._idle_search.search_if_idle)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, InputEvent):
            self._idle_search.note_input()
        await super().on_event(event)

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        return variables | neutral(variables)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters that change the colours of a line before it is shown; Textual calls this for each line."""
        filters = super().get_line_filters()
        if self.theme.startswith(_HIGH_CONTRAST):
            filters = [NoFaintText(), *filters]
        # First, because with NO_COLOR Textual removes all colours.
        return [*(ON_DARK if self.current_theme.dark else ON_LIGHT), *filters]

    def action_show_help_panel(self) -> None:
        self.push_screen(KeySheet(key_sections(self.screen)))

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


def run_app(app: TerminalApp[Result], *, headless: bool = False) -> Result | None:
    """Run an app until the user quits, and return its result; raise an exception of the app again."""
    result = app.run(headless=headless)
    if app._exception is not None:  # noqa: SLF001  # Textual keeps it for test frameworks, and there is no other way
        raise app._exception  # noqa: SLF001
    return result
