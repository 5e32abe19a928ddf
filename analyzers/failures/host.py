"""Failures of the host: its memory, its limits, and the schedulers and containers that end jobs."""

from analyzers.failures.entry import Failure

ENTRIES: tuple[Failure, ...] = ()
