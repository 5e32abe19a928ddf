"""Count the files that an analysis has read, and store its answer from the first files for a waiting user."""

import threading

MANY_FILES = 100
"""The number of files above which an analyzer answers from the first ones while it reads the others."""
FIRST_FILES = 32
"""The number of files after which such an analyzer gives its first answer."""


class Progress:
    """The number of files that an analysis needs, and how many of them have been read or were in the cache.

    `sentence` is the verdict on the first `answered` files; empty if there is none yet.
    """

    def __init__(self) -> None:
        self.wanted = self.read = self.cached = self.failed = self.answered = 0
        self.sentence = ""
        # Threads wait for the processes that read.
        self._lock = threading.Lock()

    @property
    def is_awaited(self) -> bool:
        """Whether an answer from the first files would be shown now; otherwise it need not be computed."""
        return True

    @property
    def done(self) -> int:
        """The number of files that need not be read any more.

        It is never larger than the number of needed files, even if files were read again because reading a set of them
        failed.
        """
        return min(self.wanted, self.kept + self.failed)

    @property
    def kept(self) -> int:
        return self.read + self.cached

    def want(self, files: int) -> None:
        with self._lock:
            self.wanted += files

    def add(self, files: int, *, cached: bool) -> None:
        with self._lock:
            self.read += 0 if cached else files
            self.cached += files if cached else 0

    def fail(self, files: int) -> None:
        """Record that some files cannot be read."""
        with self._lock:
            self.failed += files

    def answer(self, files: int, sentence: str) -> None:
        self.answered, self.sentence = files, sentence


def is_milestone(files: int, total: int, before: int | None = None) -> bool:
    """Return whether an analyzer should give a partial answer after `files` of its `total` files.

    Partial answers come after `FIRST_FILES`, 32, and then after 64, 128 and so on, so that all of them together cost
    about as much as the final one. `before` is the number of files at the previous question (None: one less). The final
    answer is no milestone, and an analysis of few files has none.
    """
    before = files - 1 if before is None else before
    return total > MANY_FILES and FIRST_FILES <= files < total and files.bit_length() > before.bit_length()
