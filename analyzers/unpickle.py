"""Read pickles as data only: with builtin containers, and without imports and calls.

A pickle is a program: `pickle.load` runs it, even if it comes from an unknown source. Memory snapshots and Flight
Recorder dumps are pickles of plain dicts, lists, numbers and texts, so nothing is lost if everything else is refused.
"""

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

from analyzers.errors import HostileInput, InputError, WorkbenchError


class DataUnpickler(pickle.Unpickler):
    """An unpickler that refuses every opcode that would import, call or look something up.

    It overrides two methods that a pickle of plain data never calls, so reading is not slower. A pickle that takes
    too much memory or time is stopped by the limits of the child process in which `store` reads it.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to import a global that the pickle names, which could run code.

        Raises:
            HostileInput: Always.
        """
        raise HostileInput(
            f"the pickle asks to import {module}.{name}",
            "PyTorch's recorders write plain data only; do not open this file with pickle.load",
        )

    def persistent_load(self, pid: object) -> NoReturn:  # noqa: ARG002  # the name is the interface's
        """Refuse to look up an object by its persistent id.

        Raises:
            HostileInput: Always.
        """
        raise HostileInput("the pickle refers to an object outside itself", "PyTorch's recorders write plain data only")


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector in the body of a `with`.

    Millions of containers are built in a third of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Stream(Protocol):
    """The file object from which an unpickler reads.

    Without a `peek` method, as for BytesIO, reading is three times slower.
    """

    def read(self, count: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


def load(stream: Stream) -> Any:
    """Return the object in a pickle of plain data.

    Raises:
        HostileInput: The pickle tries to import or call something.
        InputError: The pickle is damaged, or the file is not a pickle.
    """
    with gc_paused():
        try:
            return DataUnpickler(stream).load()
        except (WorkbenchError, MemoryError):
            raise
        except Exception as error:  # a damaged pickle raises nearly anything
            raise InputError(
                f"not a readable pickle: {error or type(error).__name__}", "check that the file was copied whole"
            ) from error
