"""Define the errors that a user sees: each says what went wrong, and has a hint at what to do about it.

The classes, with the condition for each:

    WorkbenchError
    ├── InputError             missing, unreadable, or of no known kind
    │   ├── HostileInput       asks for more than data: code, or a structure that no recorder writes
    │   ├── LimitExceeded      needs more memory or time than allowed
    │   └── NothingRecorded    every file was read, and none has the requested data
    └── MissingExtra           an optional dependency is not installed
"""

from enum import IntEnum


class Exit(IntEnum):
    """The exit status of a command, for scripts."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    INPUT = 3
    BUG = 70
    """A bug of this project; the number is EX_SOFTWARE of sysexits.h."""
    INTERRUPTED = 130


class WorkbenchError(Exception):
    """The base class of every error that is meant for the user; `hint` says what to do next."""

    exit_code = Exit.INPUT

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(WorkbenchError):
    """The input is missing, unreadable or of no known kind."""


class HostileInput(InputError):
    """The input asks for more than data: it would run code, or has a structure that no recorder writes."""


class LimitExceeded(InputError):
    """Reading the input takes more memory or time than allowed."""


class NothingRecorded(InputError):
    """Every file was read, but none has the data that the command needs."""


class MissingExtra(WorkbenchError):
    """A command needs a package that is only installed with an optional extra of this project."""

    exit_code = Exit.USAGE


class CacheWarning(UserWarning):
    """The cache folder cannot be used: files are read again next time, which takes time but changes no result."""
