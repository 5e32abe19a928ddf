"""Questions to the analyzers, off the event loop."""

from collections.abc import Callable
from typing import TypeVar

from textual.widget import Widget
from textual.worker import get_current_worker

from analyzers.errors import WorkbenchError

Answer = TypeVar("Answer")


def ask_aside(widget: Widget, group: str, question: Callable[[], Answer], show: Callable[[Answer], None]) -> None:
    """Run `question` in a thread and give its answer to `show` on the event loop, unless a newer question of the
    `group` came in the meantime.

    The question must be made of plain values: whoever looks at a widget's size or place may lay out the screen, which
    in a thread runs beside the loop's own layout and without an app.
    """
    app = widget.app

    def answer() -> None:
        worker = get_current_worker()
        try:
            found = question()
        except WorkbenchError as error:
            app.call_from_thread(widget.notify, error.message, severity="error", markup=False)
            return
        if not worker.is_cancelled:
            app.call_from_thread(show, found)

    widget.run_worker(answer, thread=True, exclusive=True, group=group)
