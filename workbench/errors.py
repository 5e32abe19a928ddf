"""The error for a wrong command line; all other errors are in `analyzers.errors`."""

from analyzers.errors import Exit, WorkbenchError


class UsageProblem(WorkbenchError):
    """The command line is wrong, or asks for something that is not possible."""

    exit_code = Exit.USAGE
