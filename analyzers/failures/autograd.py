"""Errors of autograd, of precision, and of wrappers such as DDP and FSDP, that their message explains."""

from analyzers.failures.entry import Failure

ENTRIES: tuple[Failure, ...] = ()
