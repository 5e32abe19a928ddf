"""What all terminal apps share: colours for light and dark themes, and errors that end the command as usual."""

from collections.abc import Sequence
from typing import TypeVar

from textual.app import App
from textual.events import Event, InputEvent
from textual.filter import LineFilter

from workbench.tui.garbage import IdleSearch
from workbench.tui.key_sheet import KeySheet, key_sections
from workbench.tui.light_shades import LightShades
from workbench.tui.readable_colours import ReadableColours
from workbench.tui.themes import BLACK, HIGH_CONTRAST, THEMES, WHITE, NoFaintText, neutral

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
        """Return the variables of the style sheet for the current theme; Textual calls this when the theme changes."""
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
        """Show the sheet with the keys that work on the screen."""
        self.push_screen(KeySheet(key_sections(self.screen)))

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


def run_app(app: TerminalApp[Result], *, headless: bool = False) -> Result | None:
    """Run an app until the user quits, and return its result; raise an exception of the app again."""
    result = app.run(headless=headless)
    if app._exception is not None:  # noqa: SLF001  # Textual keeps it for test frameworks, and there is no other way
        raise app._exception  # noqa: SLF001
    return result
