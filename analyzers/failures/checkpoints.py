"""Failures of writing, reading and loading checkpoints."""

from analyzers.failures.entry import Failure

ENTRIES: tuple[Failure, ...] = ()
