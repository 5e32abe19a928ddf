"""Settings and arguments that do not fit each other."""

from analyzers.failures.entry import Failure

ENTRIES: tuple[Failure, ...] = ()
