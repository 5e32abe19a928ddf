"""What all terminal apps share: colours for light and dark themes, and errors that end the command as usual."""

import gc
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.events import Event, InputEvent
from textual.filter import LineFilter
from textual.theme import Theme

from workbench.tui.key_sheet import KeySheet, key_sections
from workbench.tui.light_shades import LightShades
from workbench.tui.readable_colours import ReadableColours

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
HIGH_CONTRAST = "high-contrast"
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
    _high_contrast(HIGH_CONTRAST, WHITE, BLACK, dark=True),
    _high_contrast(f"{HIGH_CONTRAST}-light", BLACK, WHITE, dark=False),
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
        if self.theme.startswith(HIGH_CONTRAST):
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
