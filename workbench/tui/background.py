"""Run analyses in threads outside the event loop, so that the screen never freezes."""

from collections.abc import Callable
from typing import TypeVar

from textual.widget import Widget
from textual.worker import get_current_worker

from analyzers.errors import WorkbenchError

Answer = TypeVar("Answer")


def ask_in_background(
    widget: Widget, group: str, question: Callable[[], Answer], show: Callable[[Answer], None]
) -> None:
    """Run `question` in a thread, and then call `show` with its result on the event loop.

    If a newer question of the same `group` was asked meanwhile, the result is dropped. `question` must not read the
    size or position of a widget: that may start a screen layout, which is not safe in a thread. So compute such values
    before.
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
            app.call_from_thread(show_if_present, found)

    def show_if_present(found: Answer) -> None:
        # An app that closes removes the children of a widget before the widget itself.
        if app.is_running and widget.is_attached:
            show(found)

    widget.run_worker(answer, thread=True, exclusive=True, group=group)
