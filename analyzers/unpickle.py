"""Pickles as data only: builtin containers, no imports, no calls."""

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

from analyzers.errors import HostileInput, InputError, WorkbenchError


class DataUnpickler(pickle.Unpickler):
    """Refuses every opcode that would import, call or look something up.

    It costs nothing: recorders write only builtins, so neither method runs on an honest file. What it does not stop
    is a pickle that takes too much memory or time; `store` reads in a child process with limits for that.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise HostileInput(
            f"the pickle asks to import {module}.{name}",
            "PyTorch's recorders write plain data only; do not open this file with pickle.load",
        )

    def persistent_load(self, pid: object) -> NoReturn:  # noqa: ARG002  # the name is the interface's
        raise HostileInput("the pickle refers to an object outside itself", "PyTorch's recorders write plain data only")


@contextmanager
def gc_paused() -> Iterator[None]:
    """Building millions of containers is three times faster while the collector does not re-scan them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Stream(Protocol):
    """What an unpickler needs to read from; without a `peek` beside it, as BytesIO is, it is three times slower."""

    def read(self, count: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


def load(stream: Stream) -> Any:
    """The object in a pickle.

    Raises:
        HostileInput: It asks for code.
        InputError: It is damaged or no pickle at all.
    """
    with gc_paused():
        try:
            return DataUnpickler(stream).load()
        except (WorkbenchError, MemoryError):
            raise
        except Exception as error:  # a damaged pickle raises nearly anything
            raise InputError(
                f"not a readable pickle: {error or type(error).__name__}", "was the file copied whole?"
            ) from error
