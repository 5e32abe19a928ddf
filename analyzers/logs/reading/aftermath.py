"""Find out from a log whether a program handled an error, and whether it continued its work afterwards."""

import re

import msgspec

from analyzers.frames import Origin, origin_of
from analyzers.logs.model import EventKind, Facts, LogEvent
from analyzers.logs.reading.operations import COLLECTIVES_FILE
from analyzers.logs.reading.roster import Roster
from analyzers.logs.reading.tracebacks import Raised

_LOGGED = re.compile(r"\b(?:ERROR|WARNING|WARN|CRITICAL)\b")
"""Matches the level that a logger prints before a message.

A logger that prints an exception shows that the program caught it.
"""
_HANDLED = re.compile(
    r"\b(?:skip(?:ping|ped|s)?|retry(?:ing)?|attempt \d+|fall(?:ing|s)? back|ignor(?:ed|ing)|continuing)\b",
    re.IGNORECASE,
)
"""Matches the words by which a program reports that it handles an error."""
_THREAD_DIED = re.compile(r"^Exception in thread (\S[^\n]{0,80}):$")
_RAISED_KINDS = (
    EventKind.EXCEPTION,
    EventKind.OUT_OF_MEMORY,
    EventKind.HOST_OUT_OF_MEMORY,
    EventKind.DATALOADER_WORKER,
    EventKind.DISK_FULL,
    EventKind.NETWORK,
)
"""The kinds of events that report an error which a program can catch."""


def with_circumstances(facts: Facts, raised: Raised, before: str, *, has_rank: bool) -> Facts:
    """Return the facts of an exception with `logged`, `uncaught` and `thread` set from the way it was printed.

    `logged`: a logger printed the exception. `uncaught`: PyTorch's hook for uncaught exceptions printed it. `thread`:
    the thread that it ended. `before` is the line before its traceback; `has_rank` says whether its lines begin with
    PyTorch's `[rankN]:`. An exception that Python itself ignores, such as an error of a destructor, counts as logged.
    """
    thread = _THREAD_DIED.match(before)
    # The program of a `python -c`: a child process printed it, which may fail without any harm.
    of_child = not has_rank and bool(raised.frames) and raised.frames[0][0] == "<string>"
    is_logged = of_child or "Exception ignored in" in before or (not has_rank and bool(_LOGGED.search(before)))
    return msgspec.structs.replace(
        facts, logged=is_logged, uncaught=has_rank and bool(raised.frames), thread=thread[1] if thread else None
    )


def is_of_worker(raised: Raised) -> bool:
    """Return whether an exception was raised while data was received from a data-loader worker, judged by its frames.

    A lost connection there is a connection to the worker, not to another rank.
    """
    files = [file for file, _, _ in raised.frames]
    return any("/torch/utils/data/" in f for f in files) and any("/multiprocessing/" in f for f in files)


def is_handled(kind: EventKind, text: str) -> bool:
    """Return whether a line of a logger reports an error and how the program continues, such as `retrying`.

    `kind` is the kind of the event in the line.
    """
    return kind in _RAISED_KINDS and bool(_LOGGED.search(text)) and bool(_HANDLED.search(text))


def marked_as_survived(event: LogEvent, roster: Roster) -> LogEvent:
    """Return `event`, with `facts.survived` set if the log shows that training continued after it.

    After an exception a later step shows this; after a loss that is NaN a later finite loss shows this. An error
    printed by PyTorch's hook for uncaught exceptions has ended its process, so it never gets this mark. `roster` has
    the last step and the last line of each rank in the log.
    """
    if event.kind is EventKind.NAN:
        survived = not event.facts.ranks and roster.is_finite_after(event.line, event.rank)
    else:
        survived = (
            event.kind in _RAISED_KINDS and not event.facts.uncaught and roster.goes_on_after(event.line, event.rank)
        )
    return _with_facts(event, survived=True) if survived else event


def _with_facts(event: LogEvent, **changed: object) -> LogEvent:
    """Return a copy of the event with some fields of its facts changed."""
    return msgspec.structs.replace(event, facts=msgspec.structs.replace(event.facts, **changed))


def with_stack(event: LogEvent, stack: list[tuple[str, str, str]]) -> LogEvent:
    """Return the event with the innermost user line of a stack as its source, and the collective that the stack is in.

    `stack` has (file, line, function) of each frame, the innermost first. Without a user line the event is unchanged.
    """
    operation = next((name for file, _, name in stack if file.endswith(COLLECTIVES_FILE) and name), None)
    file, line, name = next((f for f in stack if origin_of(f[0]) is Origin.USER), ("", "", ""))
    if not file:
        return event
    placed = msgspec.structs.replace(event, source=f"{file}:{line}", function=name)
    return _with_facts(placed, operation=operation)
