"""What happens when a terminal app of ours has a bug: the terminal is restored, and the command ends as any other."""

from typing import TypeVar

from textual.app import App

Result = TypeVar("Result")


class RaisingApp(App[Result]):
    """An app whose exceptions `run_app` raises; Textual itself would print them with the values of all variables."""

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()


def run_app(app: RaisingApp[Result], *, headless: bool = False) -> Result | None:
    """Run an app until the user quits, and return its result; an exception in it is raised here."""
    result = app.run(headless=headless)
    if app._exception is not None:  # noqa: SLF001  # Textual keeps it for test frameworks, and there is no other way
        raise app._exception  # noqa: SLF001
    return result
