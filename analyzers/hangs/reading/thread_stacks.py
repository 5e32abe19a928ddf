"""Read the Python stacks of processes, in the text formats of py-spy and faulthandler."""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from analyzers.files import open_regular
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.debug_server import holds_many, read_stacks

_TEXT_BYTES = 1 << 22
_FAULTHANDLER = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+),? in (?P<name>.+)$')
_PY_SPY = re.compile(r"^\s+(?P<name>.+) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
"""Matches a frame as py-spy prints it; a frame of native code has no line number if its library has none."""
THREAD = re.compile(r"^(?:Current thread|Thread|Process)\b")

PROCESS = re.compile(r"^Process (?P<pid>\d{1,10}):", re.MULTILINE)
"""Matches the line with the number of the process that py-spy writes before the stacks."""


def read_main_thread(path: Path, rank: int) -> list[Frame]:
    """Return the stack of a rank's main thread, innermost frame first; empty if the file cannot be read.

    If `path` is a page with many ranks, the stack of `rank` is read. Neither py-spy nor faulthandler marks the main
    thread reliably, so the deepest stack is taken, among those with the frame `<module>` if there are any.
    """
    try:
        return _main_thread_of(_text_of(path, rank))
    except OSError:
        return []


def read_threads(path: Path, rank: int) -> list[list[Frame]]:
    """Return the stacks of all threads of a rank, each innermost frame first; empty if the file cannot be read."""
    try:
        return _split_threads(_text_of(path, rank).splitlines())
    except OSError:
        return []


def read_pid(path: Path, rank: int) -> int:
    """Return the id of a rank's process, which py-spy writes before its stacks; 0 if the file has none."""
    try:
        match = PROCESS.search(_text_of(path, rank))
    except OSError:
        return 0
    return int(match["pid"]) if match else 0


def _main_thread_of(text: str) -> list[Frame]:
    """Return the stack of the main thread, innermost frame first, from a text with all threads of one process.

    It is the deepest stack, among those with the frame `<module>` if there are any.
    """
    threads = _split_threads(text.splitlines())
    scripts = [t for t in threads if any(f.name.strip() == "<module>" for f in t)]
    return max(scripts or threads, key=len, default=[])


def _text_of(path: Path, rank: int) -> str:
    """Return the text with the stacks of `rank`, from a file of its own or from a page of many ranks.

    Raises:
        OSError: The file cannot be read.
    """
    if holds_many(path):
        return read_stacks(path).get(rank, "")
    with open_regular(path) as file:
        return file.read(_TEXT_BYTES).decode(errors="replace")


def _split_threads(lines: list[str]) -> list[list[Frame]]:
    """Return the stack of each thread in the `lines` of a file, as a list of frames, innermost first."""
    threads: list[list[Frame]] = [[]]
    for line in lines:
        if THREAD.match(line):
            threads.append([])
        elif match := _FAULTHANDLER.match(line) or _PY_SPY.match(line):
            threads[-1].append(Frame(match["name"], match["file"], int(match["line"] or 0)))
    return [thread for thread in threads if thread]


# Read `children_R.txt`, which lists the processes that rank R had started, such as data-loader workers.
#
# The file also has the Python stacks of these processes. The recorder writes it when it takes the stack of rank R.

_START_OF_CHILD = "_bootstrap"
_CHILD_STACKS_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Child:
    """A process that a rank started; `stack` is its main thread's Python stack, innermost frame first.

    Frames that a fork copied from the rank are not in `stack`. `stack` is empty if the process wrote none.
    """

    pid: int
    command: str
    stack: list[Frame]


def read_children(path: Path) -> list[Child]:
    """Return the child processes of rank R listed in its `children_R.txt`; empty if the file cannot be read."""
    try:
        with open_regular(path) as file:
            text = file.read(_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return []
    matches = list(_CHILD_STACKS_PROCESS.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return [
        Child(int(match["pid"]), match["command"], _own_part(_main_thread_of(text[match.end() : end])))
        for match, end in zip(matches, ends, strict=True)
    ]


def _own_part(stack: list[Frame]) -> list[Frame]:
    """Return the frames of a forked process that are newer than the fork; `stack` has the innermost frame first.

    The older frames are copies from the parent process, so they do not show what the child process does.
    """
    return list(takewhile(lambda frame: frame.name != _START_OF_CHILD, stack))
