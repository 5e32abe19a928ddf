"""The error of a wrong command line, beside the errors of the analyzers."""

from analyzers.errors import Exit, WorkbenchError


class UsageProblem(WorkbenchError):
    """The command line asks for something that cannot be done as asked."""

    exit_code = Exit.USAGE
