"""Write a node's files to a URL in a process beside its launcher.

    python -P -m workbench.collect.beside FOLDER NODES < pipe

The URL, which may hold a password, is in the environment. The launcher writes "done" to the pipe when the job has
ended. If the pipe closes without it, the launcher was killed.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from analyzers.errors import WorkbenchError
from workbench.collect.sender import Sender, has_ended, node_name
from workbench.console import complain

URL = "WORKBENCH_COLLECT_URL"
DONE = b"done"
_ORPHANED_S = 120.0
"""The seconds after which a sender ends whose launcher was killed, even if nothing records the end of the job."""


@contextlib.contextmanager
def signals_remembered() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT has come inside this context.

    A second signal interrupts the process.
    """
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Launcher(threading.Thread):
    """Waits until the launcher writes "done" to standard input (then `is_done` is set), or is killed (see `lost_s`)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_done = False
        self._lost_at: float | None = None
        self.start()

    @property
    def lost_s(self) -> float:
        """Seconds since the launcher was killed; 0 if it was not."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def run(self) -> None:
        """Read standard input to its end."""
        self.is_done = sys.stdin.buffer.read() == DONE
        self._lost_at = None if self.is_done else time.monotonic()


def main() -> None:
    """Write the files of a folder until the launcher says that the job has ended; without it, until the job has."""
    folder, launcher = Path(sys.argv[1]), Launcher()

    def is_over() -> bool:
        return launcher.is_done or launcher.lost_s > _ORPHANED_S or bool(launcher.lost_s and has_ended(folder))

    try:
        Sender(folder, os.environ[URL], node_name(), int(sys.argv[2])).run(is_over)
    except WorkbenchError as error:
        complain(error.message, error.hint)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
