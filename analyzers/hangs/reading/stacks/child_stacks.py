"""Read `children_R.txt`, which lists the processes that rank R had started, such as data-loader workers.

The file also has the Python stacks of these processes. The recorder writes it when it takes the stack of rank R.
"""

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from analyzers.files import open_regular
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.stacks.thread_stacks import TEXT_BYTES, main_thread_of

_START_OF_CHILD = "_bootstrap"
PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)$", re.MULTILINE)


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
            text = file.read(TEXT_BYTES).decode(errors="replace")
    except OSError:
        return []
    matches = list(PROCESS.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return [
        Child(int(match["pid"]), match["command"], _own_part(main_thread_of(text[match.end() : end])))
        for match, end in zip(matches, ends, strict=True)
    ]


def _own_part(stack: list[Frame]) -> list[Frame]:
    """Return the frames of a forked process that are newer than the fork; `stack` has the innermost frame first.

    The older frames are copies from the parent process, so they do not show what the child process does.
    """
    return list(takewhile(lambda frame: frame.name != _START_OF_CHILD, stack))
