"""Count the files of a question that have been read, and keep the answer of those, for somebody who waits for all."""

import threading

MANY_FILES = 100
"""From more files than this on, an analyzer answers from the first of them while it reads the others."""


class Progress:
    """How many files a question needs, and how many of them have been read or were in the cache.

    `sentence` is the verdict on the first `answered` files; empty if there is none yet.
    """

    def __init__(self) -> None:
        self.wanted = self.read = self.cached = self.answered = 0
        self.sentence = ""
        # Threads wait for the processes that read.
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """The number of files that need not be read any more; a set of files may be read in parts a second time."""
        return min(self.wanted, self.read + self.cached)

    def want(self, files: int) -> None:
        """Record that some files are to be read."""
        with self._lock:
            self.wanted += files

    def add(self, files: int, *, cached: bool) -> None:
        """Record that some files have been read, or were found in the cache."""
        with self._lock:
            self.read += 0 if cached else files
            self.cached += files if cached else 0

    def answer(self, files: int, sentence: str) -> None:
        """Record what the first files say."""
        self.answered, self.sentence = files, sentence


def is_milestone(files: int, total: int) -> bool:
    """Return whether an analyzer should answer from this many of its files: 32, 64, 128 and so on, of many.

    So all these answers together cost about as much as the last one.
    """
    return total > MANY_FILES and 32 <= files < total and files.bit_count() == 1
