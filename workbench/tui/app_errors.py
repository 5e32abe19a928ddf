"""Raise errors of the terminal apps again after the terminal is restored, so that they end the command as usual."""

from typing import TypeVar

from textual.app import App

Result = TypeVar("Result")


class RaisingApp(App[Result]):
    """An app whose exceptions `run_app` raises again.

    Textual itself would print them with the values of all variables.
    """

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


def run_app(app: RaisingApp[Result], *, headless: bool = False) -> Result | None:
    """Run an app until the user quits, and return its result; an exception in the app is raised again here."""
    result = app.run(headless=headless)
    if app._exception is not None:  # noqa: SLF001  # Textual keeps it for test frameworks, and there is no other way
        raise app._exception  # noqa: SLF001
    return result
