"""The error for a wrong command line; all other errors are in `analyzers.errors`."""

from collections.abc import Iterator
from contextlib import contextmanager

from analyzers.errors import Exit, WorkbenchError
from trainer.errors import ConfigError


class UsageProblem(WorkbenchError):
    """The command line is wrong, or asks for something that is not possible."""

    exit_code = Exit.USAGE


@contextmanager
def trainer_errors_as_ours() -> Iterator[None]:
    """Return a context that turns a `ConfigError` of the trainer into a `UsageProblem` with the same text."""
    try:
        yield
    except ConfigError as error:
        raise UsageProblem(error.message, error.hint) from error
