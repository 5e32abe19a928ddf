"""Advise what to look at if a rank is stuck in its own code, judged by the innermost frames of its stack."""

import re
from typing import NamedTuple

from analyzers.hangs.classify.cause import Process
from analyzers.hangs.findings.wording import format_function, format_line
from analyzers.hangs.model import Frame, user_frame


class LibraryWait(NamedTuple):
    """A known way to wait inside a library: `file` and `function` match its frame; `advice` says what to look at.

    In the advice, {code} is replaced by the user's function and line that called the library.
    """

    file: re.Pattern[str]
    function: re.Pattern[str]
    advice: str
    options: str = ""


def _library_wait(file: str, function: str, advice: str, options: str = "") -> LibraryWait:
    """Return a `LibraryWait`; `file` matches the end of a path, `function` a whole name."""
    return LibraryWait(re.compile(rf"(^|/)(?:{file})$"), re.compile(rf"^(?:{function})$"), advice, options)


_CHILDREN = "--subprocesses"
"""The option of py-spy that also prints the stacks of the processes that a rank has started."""
# Sorted from special to general: a data loader, for example, waits for its workers in `queue.get`.
WAITS = (
    _library_wait(
        r"torch/utils/data/dataloader\.py",
        ".*",
        "find the data-loader worker that gives {code} no batch; with num_workers=0 the rank itself shows the line",
        _CHILDREN,
    ),
    _library_wait(
        r"queue\.py",
        "get",
        "find what should put items into the queue that {code} reads: a thread that ended, or more reads than items",
    ),
    _library_wait(
        r"queue\.py", "put", "find what should read the full queue that {code} fills: a thread that ended, or is stuck"
    ),
    _library_wait(
        r"queue\.py", "join", "call task_done() for every item of the queue for which {code} waits, also after an error"
    ),
    _library_wait(
        r"threading\.py",
        "join|_wait_for_tstate_lock",
        "find out why the thread does not end for which {code} waits: its stack is among those of the rank",
    ),
    _library_wait(
        r"threading\.py",
        "wait|wait_for|acquire|__enter__",
        "find the thread that should release the lock, or set the event, for which {code} waits, and where it is",
    ),
    _library_wait(
        r"concurrent/futures/\w+\.py",
        ".*",
        "find out what the tasks do for which {code} waits: a task that waits for its own pool never ends",
    ),
    _library_wait(
        r"subprocess\.py",
        ".*",
        "find out why the command does not end that {code} starts: it may wait for input, or for its output to be read",
        _CHILDREN,
    ),
    _library_wait(
        r"multiprocessing/(?:\w+/)?\w+\.py",
        ".*",
        "find out what the process does for which {code} waits: it ended, or waits for its output to be read",
        _CHILDREN,
    ),
    _library_wait(
        r"(?:socket|ssl)\.py|http/client\.py|urllib/request\.py|(?:requests|urllib3|httpx|aiohttp|botocore)/.*\.py",
        ".*",
        "find out which server does not answer {code}, and give the call a timeout",
    ),
    _library_wait(r"(?:pdb|bdb|cmd|code)\.py", ".*", "remove the breakpoint or prompt in {code}: it waits for input"),
    _library_wait(
        r"(?:re|re/__init__)\.py",
        ".*",
        "look at the pattern that {code} uses and at the text it searches: nested repetitions may take for ever",
    ),
)
"""The waits in library code that are recognised; if several match a frame, the first one counts."""


def py_spy(process: Process, options: str = "") -> str:
    """Return the py-spy command that prints the stacks of a process, and the host on which to run the command."""
    return f"`py-spy dump{f' {options}' if options else ''} --pid {process.number}`{on_host(process)}"


def on_host(process: Process) -> str:
    """Return the end of a command's description, which names the process's host; empty if only the host is unknown."""
    if process.host:
        return f" on host {process.host}"
    return "" if process.pid else " on its host"


def for_stuck_code(frames: list[Frame], process: Process, number: int = 1) -> str:
    """Return what to look at if ranks do not return from their own code; `frames` has the innermost frame first.

    `number` is how many ranks are stuck there; `process` is the process of the first of them.
    """
    line = user_frame(frames)
    # Native frames, which have no line in a Python file, say less than the Python code that called them.
    calls = [call for call in (frames[: frames.index(line)] if line else []) if call.filename.endswith(".py")]
    code = format_function(frames)
    known = (wait for call in reversed(calls) for wait in WAITS if matches(wait, call))
    wait = min(known, key=WAITS.index, default=None)
    there, first = (" of the first of these ranks", "of the first of these ranks") if number > 1 else ("", "there")
    if wait:
        shows = "shows its stacks and those of its processes" if wait.options else "shows all its threads"
        return f"{wait.advice.format(code=code)}; while it hangs, {py_spy(process, wait.options)} {shows}{there}"
    called = f"what {calls[-1].name} ({format_line(calls[-1])}) waits for in {code}" if calls else ""
    where = called or _in_own_code(line, code)
    return f"find out {where}; while it hangs, {py_spy(process, '--locals')} shows the variables {first}"


def matches(wait: LibraryWait, frame: Frame) -> bool:
    """Return whether a frame of a library shows this known way to wait."""
    return bool(wait.file.search(frame.filename.replace("\\", "/")) and wait.function.search(frame.name))


def _in_own_code(line: Frame | None, code: str) -> str:
    """Return what to find out about the user's code at `line`, if its stack shows no call of a library."""
    if line and line.name == "<lambda>":  # it has no loop
        return f"what the call in {code} waits for"
    return f"which condition ends the loop in {code}, or what the call on this line waits for"
