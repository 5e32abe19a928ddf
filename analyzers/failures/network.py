"""Failures of networks: names, interfaces, InfiniBand and sockets."""

from analyzers.failures.entry import Failure

ENTRIES: tuple[Failure, ...] = ()
