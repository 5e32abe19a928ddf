"""What happens when a terminal app of ours has a bug: the terminal is restored, and the command ends as any other."""

from typing import TypeVar

from textual.app import App

Result = TypeVar("Result")


class RaisingApp(App[Result]):
    """An app that hands an exception to `run_app`: Textual itself prints it with the values of all variables."""

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


def run_app(app: RaisingApp[Result], *, headless: bool = False) -> Result | None:
    """Show an app until the user quits, and return what it returns; an exception in it is raised here."""
    result = app.run(headless=headless)
    if app._exception is not None:  # noqa: SLF001  # Textual keeps it for test frameworks, and there is no other way
        raise app._exception  # noqa: SLF001
    return result
