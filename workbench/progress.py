"""A progress line on stderr while files are read, if reading takes long."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from analyzers.run import Run
from analyzers.store import MANY_FILES, Options, Progress
from analyzers.words import quantity, size, waiting_time
from workbench.console import note, rewrite_line

FIRST_S, EVERY_S = 2.0, 1.0
"""The seconds after which the progress line appears on a terminal, and those between two changes of it."""
FIRST_NOTE_S = 20.0
"""The seconds after which the first progress line is printed if stderr is no terminal.

Each further line is printed when twice as much time has passed, so that logs stay short.
"""


@contextmanager
def shown_progress(options: Options, *runs: Run) -> Iterator[Options]:
    """Return a context in which stderr shows how many files of these runs have been read.

    If there are many files, a preliminary answer from the first files is printed too. The context yields a copy of
    `options`; an analysis with these options reports its progress.
    """
    files = [file for run in runs for file in run.artefacts]
    watched = WatchedReading(f"reading {quantity(len(files), 'file')}, {size(sum(file.bytes for file in files))}")
    try:
        with shown_text(watched.describe):
            yield replace(options, progress=watched)
    except KeyboardInterrupt:
        if watched.wanted > MANY_FILES and options.cache:
            note(f"{watched.kept} of {watched.wanted} files are in the cache: the same command goes on from there")
        raise
    if watched.wanted > MANY_FILES and watched.read and watched.cached:
        note(f"read {quantity(watched.read, 'file')}; {watched.cached} were in the cache")


class WatchedReading(Progress):
    """The progress of an analysis as a line of text.

    It also prints the preliminary answer from the files that have been read so far, when this answer changes.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self._began = text, time.monotonic()

    def describe(self) -> str:
        """Return a text on what is read; if there are many files, also how many of them have been read."""
        if self.wanted <= MANY_FILES:
            return self._text
        cached = f" ({self.cached} from the cache)" if self.cached else ""
        return f"{self._text}: {self.done} of {self.wanted}{cached}"

    @property
    def is_awaited(self) -> bool:
        return time.monotonic() - self._began > FIRST_S

    def answer(self, files: int, sentence: str) -> None:
        """Print the preliminary answer from the first files, if it is new and the analysis has taken long."""
        if sentence != self.sentence and self.is_awaited:
            if sys.stderr.isatty():
                rewrite_line("")
            note(f"so far, {files} of {self.wanted} files: {sentence}")
            super().answer(files, sentence)


@contextmanager
def shown_text(describe: Callable[[], str]) -> Iterator[None]:
    """Return a context in which stderr shows the result of `describe`, and the time that has passed.

    On a terminal, this is one line that is redrawn. The signal SIGALRM triggers the redrawing, and not a second thread:
    a process with two threads cannot safely fork the processes that read the files. Nothing is shown outside of the
    main thread, or if the program uses SIGALRM itself.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    line = ProgressLine(describe, on_terminal=sys.stderr.isatty())
    signal.signal(signal.SIGALRM, line.show)
    signal.setitimer(signal.ITIMER_REAL, line.wait_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        line.clear()


class ProgressLine:
    def __init__(self, describe: Callable[[], str], *, on_terminal: bool) -> None:
        self._describe, self._on_terminal = describe, on_terminal
        self._began, self._is_shown = time.monotonic(), False
        self.wait_s = FIRST_S if on_terminal else FIRST_NOTE_S

    def show(self, _number: int, _frame: FrameType | None) -> None:
        """Print how long reading has taken so far, and restart the timer, which then calls this method again."""
        waited = time.monotonic() - self._began
        text = f"{self._describe()}   {waiting_time(waited)}"
        if self._on_terminal:
            rewrite_line(text)
            self._is_shown = True
        else:
            note(text)
        self.wait_s = EVERY_S if self._on_terminal else max(waited, FIRST_NOTE_S)
        signal.setitimer(signal.ITIMER_REAL, self.wait_s)

    def clear(self) -> None:
        if self._is_shown:
            rewrite_line("")
