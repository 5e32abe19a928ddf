"""Read stacks of processes as py-spy and faulthandler print them."""

import re
from pathlib import Path

from analyzers.files import open_regular
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.debug_server import holds_many, read_stacks

TEXT_BYTES = 1 << 22
FAULTHANDLER = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+),? in (?P<name>.+)$')
PY_SPY = re.compile(r"^\s+(?P<name>.+) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
"""A frame as py-spy prints it; native code has no line if its library was built without line numbers."""
THREAD = re.compile(r"^(?:Current thread|Thread|Process)\b")


def read_main_thread(path: Path, rank: int) -> list[Frame]:
    """Return the stack of the thread that runs the script, innermost frame first; empty if the file cannot be read.

    In a page of many ranks, the stack of `rank` is read. Neither py-spy nor faulthandler marks the main thread
    reliably, so the thread is taken whose stack begins in `<module>`, or else the thread with the deepest stack.
    """
    try:
        return main_thread_of(text_of(path, rank))
    except OSError:
        return []


def read_threads(path: Path, rank: int) -> list[list[Frame]]:
    """Return the stacks of all threads of a rank, each innermost frame first; empty if the file cannot be read."""
    try:
        return split_threads(text_of(path, rank).splitlines())
    except OSError:
        return []


def main_thread_of(text: str) -> list[Frame]:
    """Return the stack of the thread that runs the script, from the text with all threads of one process."""
    threads = split_threads(text.splitlines())
    scripts = [t for t in threads if any(f.name.strip() == "<module>" for f in t)]
    return max(scripts or threads, key=len, default=[])


def text_of(path: Path, rank: int) -> str:
    """Return the text with the stacks of `rank`, from its own file or from a page of many ranks."""
    if holds_many(path):
        return read_stacks(path).get(rank, "")
    with open_regular(path) as file:
        return file.read(TEXT_BYTES).decode(errors="replace")


def split_threads(lines: list[str]) -> list[list[Frame]]:
    """Return the stack of each thread, as lists of frames, innermost first."""
    threads: list[list[Frame]] = [[]]
    for line in lines:
        if THREAD.match(line):
            threads.append([])
        elif match := FAULTHANDLER.match(line) or PY_SPY.match(line):
            threads[-1].append(Frame(match["name"], match["file"], int(match["line"] or 0)))
    return [thread for thread in threads if thread]
