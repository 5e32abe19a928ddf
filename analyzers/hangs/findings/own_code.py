"""Know the hangs in which a rank runs its own code, or a library's, and joins no operation."""

import re
from collections.abc import Callable
from typing import NamedTuple

from analyzers.hangs.classify.cause import Cause, ChildProcess, HostState, Process
from analyzers.hangs.findings.entry import HangFailure, Text, write
from analyzers.hangs.findings.wording import (
    at_step,
    choose_pronoun,
    format_exception,
    format_function,
    format_line,
    in_function,
    is_message,
    name_operation,
    on_host,
    part_of_step,
    py_spy,
)
from analyzers.hangs.model import Frame, HangClass, Reason, user_frame
from analyzers.hangs.reading.side_formats import ProcessState
from analyzers.words import agree, rank_names


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
        r"multiprocessing/pool\.py",
        ".*",
        "find out what the workers of the pool do for which {code} waits. Where all of them are idle, one was killed"
        " with its task, for which multiprocessing.Pool waits for ever; concurrent.futures.ProcessPoolExecutor raises"
        " BrokenProcessPool then",
        _CHILDREN,
    ),
    _library_wait(
        r"multiprocessing/synchronize\.py",
        ".*",
        "find the process that holds the lock, or should set the event, for which {code} waits",
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


def for_stuck_code(frames: list[Frame], process: Process, number: int = 1, child: ChildProcess | None = None) -> str:
    """Return what to look at if ranks do not return from their own code; `frames` has the innermost frame first.

    `number` is how many ranks are stuck there; `process` is the process of the first of them, and `child` a process
    that it has started and that does not return from the user's code either.
    """
    line = user_frame(frames)
    # Native frames, which have no line in a Python file, say less than the Python code that called them.
    calls = [call for call in (frames[: frames.index(line)] if line else []) if call.filename.endswith(".py")]
    code = format_function(frames)
    known = (wait for call in reversed(calls) for wait in WAITS if matches(wait, call))
    wait = min(known, key=WAITS.index, default=None)
    there, first = (" of the first of these ranks", "of the first of these ranks") if number > 1 else ("", "there")
    its = f"child process {child.pid} {{}} {format_function(list(child.frames))}" if child else ""
    if its and wait and wait.options:
        return f"find out why {its.format('does not return from')}: {code} waits for it, or for a lock that it holds"
    if wait:
        shows = "shows its stacks and those of its processes" if wait.options else "shows all its threads"
        return f"{wait.advice.format(code=code)}; while it hangs, {py_spy(process, wait.options)} {shows}{there}"
    called = f"what {calls[-1].name} ({format_line(calls[-1])}) waits for in {code}" if calls else ""
    where = called or _in_own_code(line, code) + (f" (its {its.format('is in')})" if its else "")
    return f"find out {where}; while it hangs, {py_spy(process, '--locals')} shows the variables {first}"


def matches(wait: LibraryWait, frame: Frame) -> bool:
    return bool(wait.file.search(frame.filename.replace("\\", "/")) and wait.function.search(frame.name))


def _in_own_code(line: Frame | None, code: str) -> str:
    """Return what to find out about the user's code at `line`, if its stack shows no call of a library."""
    if line and line.name == "<lambda>":  # it has no loop
        return f"what the call in {code} waits for"
    return f"which condition ends the loop in {code}, or what the call on this line waits for"


# What the process of the rank does.

_STATES = {
    ProcessState.STOPPED: "its process is stopped",
    ProcessState.IN_KERNEL: "its process waits inside a system call, as for storage that does not answer",
}
_HOLDS_GIL = (
    "its process does not answer requests that need Python's global lock (GIL), so a C call holds that lock (the stack"
    " was read without it)"
)


def _host_state(host: HostState) -> str:
    """Return a phrase with what is known about the process of a running rank; empty if nothing is known.

    The phrase can name the part of the step, a held global lock of Python (GIL), a process that is stopped or waits in
    the kernel, and a thread that ended by an exception.
    """
    parts = [
        f"it last reported progress{part_of_step(host.phase, host.step)}" if host.phase else "",
        _HOLDS_GIL if host.holds_gil else "",
        _STATES[host.process] if host.process else "",
        f"its thread {host.thread_error.thread} ended: {format_exception(host.thread_error)}"
        if host.thread_error
        else "",
        f"a task of asyncio ended: {format_exception(host.task_error)}" if host.task_error else "",
    ]
    return "; ".join(part for part in parts if part)


_SHOWN_BY: dict[Reason, Text] = {
    Reason.NO_ANSWER: lambda cause: (
        _host_state(cause.host) or f"{choose_pronoun(cause.ranks)} did not answer the request for a dump"
    ),
    Reason.RUNS_OWN_CODE: lambda cause: _host_state(cause.host),
}


def _joined(cause: Cause) -> str:
    return "issued the other half of" if is_message(cause.culprit) else "joined"


def _stuck(cause: Cause) -> str:
    """Return the title on ranks that run their own code: `rank 3 is stuck at step 6 in tokenize (data/text.py:41)`."""
    are = agree(cause.ranks, "is", "are")
    stuck = f"{rank_names(cause.ranks)} {are} stuck{at_step(cause)}{in_function(cause, ' outside any collective')}"
    return f"{stuck} and never {_joined(cause)} {name_operation(cause.culprit)}"


def _shut_down(cause: Cause) -> str:
    ranks, name = cause.ranks, name_operation(cause.culprit)
    ended = f"{choose_pronoun(ranks)} left no dump, and SIGTERM ended {agree(ranks, 'it', 'them')}"
    return f"{rank_names(ranks)} never {_joined(cause)} {name}{at_step(cause)}: {ended} at last"


def _end_thread(cause: Cause) -> str:
    line = format_line(user_frame(cause.culprit.frames))
    return f"stop the thread{f' at {line}' if line else ''} at the end of the program, or start it with daemon=True"


def _mend_thread(cause: Cause) -> str:
    error = cause.host.thread_error
    assert error
    where = format_line(user_frame(error.traceback))
    fix = error.hint or f"fix the {error.error} raised{f' at {where}' if where else ''}"
    return f"{fix}: {'the error' if error.hint else 'it'} ended a thread of the rank"


def _mend_task(cause: Cause) -> str:
    task = cause.host.task_error
    assert task
    where = f" at {at}" if (at := format_line(user_frame(task.traceback))) else ""
    return (
        f"fix the {task.error} raised{where}: it ended a task, for which the rank may wait for ever; await"
        " tasks, or run them in an asyncio.TaskGroup, so that their errors are raised"
    )


def _in_c(cause: Cause) -> str:
    return (
        f"look at the C function that {format_line(user_frame(cause.culprit.frames))} calls: it does not return and"
        f" holds the GIL; while it hangs, {py_spy(cause.process, '--native')} names it"
    )


def _in_python(cause: Cause) -> str:
    if user_frame(cause.culprit.frames) is None:
        return f"see where the rank is with {py_spy(cause.process)}, as no stack of it was recorded"
    return for_stuck_code(cause.culprit.frames, cause.process, len(cause.ranks), cause.host.child)


def _of_state(cause: Cause) -> str:
    """Return what to do about the state of the process."""
    return write(next(state for state in _OF_STATES if state.shows(cause)).next, cause)


_WAITS_FOR_RANKS = (
    "the process of {ranks} is alive, but runs other code instead of joining. {operation} completes only with {whom},"
    " so the others wait"
)


class _State(NamedTuple):
    """A state of the process of a stuck rank: what it is, when it shows, and what to do."""

    name: str
    what: str
    shows: Callable[[Cause], bool]
    next: Text


_OF_STATES = (
    _State(
        "stopped",
        "The process of a rank is stopped, by SIGSTOP or a debugger.",
        lambda cause: cause.host.process is ProcessState.STOPPED,
        lambda cause: (
            f"continue the process with `kill -CONT {cause.process.number}`{on_host(cause.process)}, and find"
            " out what stopped it"
        ),
    ),
    _State(
        "in_kernel",
        "The process of a rank waits inside a system call, as for storage that does not answer.",
        lambda cause: cause.host.process is ProcessState.IN_KERNEL,
        "check the storage and the drivers of the host: the process waits in a system call",
    ),
    _State(
        "dead_thread",
        "An exception ended a thread of a rank, for which the rank waits.",
        lambda cause: cause.host.thread_error is not None,
        _mend_thread,
    ),
    _State(
        "dead_task",
        "An exception ended a task of asyncio, for which the rank waits.",
        lambda cause: cause.host.task_error is not None,
        _mend_task,
    ),
    _State(
        "in_c_code",
        "A C function does not return and holds Python's global lock (GIL).",
        lambda cause: cause.host.holds_gil and user_frame(cause.culprit.frames) is not None,
        _in_c,
    ),
    _State(
        "own_code",
        "A rank runs its own code, or waits in a library, and does not come to the operation of the others.",
        lambda _cause: True,
        _in_python,
    ),
)
"""The states of a stuck rank's process, the most telling first."""

ENTRIES = (
    HangFailure(
        id="hang.kept_alive",
        kind=HangClass.HOST_STUCK,
        reasons=(Reason.KEPT_ALIVE,),
        what="The program of a rank has ended, and a thread that is no daemon keeps its process alive.",
        title="{ranks} finished {their} program, but a thread that is no daemon keeps the process alive{place}",
        why="Python waits for such threads before a process ends, and the launcher waits for the process",
        next=_end_thread,
        shown_by="its main thread waits for other threads at the end of the program",
        in_title=True,
        keeps_next=True,
    ),
    HangFailure(
        id="hang.named_absent",
        kind=HangClass.HOST_STUCK,
        reasons=(Reason.NAMED_ABSENT,),
        what="A monitored barrier names a rank that did not join it.",
        title="{ranks} never joined the monitored barrier{step}{place}",
        why=_WAITS_FOR_RANKS,
        next=_of_state,
        shown_by="the error of the ranks that waited names it",
    ),
    HangFailure(
        id="hang.shut_down",
        kind=HangClass.HOST_STUCK,
        reasons=(Reason.SHUT_DOWN,),
        what="A rank never joined, left no dump, and was ended by SIGTERM after the failure of the others.",
        title=_shut_down,
        why="all other members are in this operation, which completes as soon as the last one joins. After the first"
        " failure a launcher ends the ranks that remain with SIGTERM, so the signal is no cause",
        next=_of_state,
        shown_by="all other members have joined",
        in_title=True,
    ),
    *(
        HangFailure(
            id=f"hang.{state.name}",
            kind=HangClass.HOST_STUCK,
            when=state.shows,
            what=state.what,
            title=_stuck,
            why=_WAITS_FOR_RANKS,
            next=state.next,
            shown_by=_SHOWN_BY,
        )
        for state in _OF_STATES
    ),
)
