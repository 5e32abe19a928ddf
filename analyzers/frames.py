"""Classify stack frames as library or user code; all analyzers use this definition."""

import re
import sys
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple


class Place(NamedTuple):
    """A place in code, as a stack frame names it; `file` is empty for native code, `line` 0 if it is not known."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file or '??'}:{self.line} {self.function}" if self.file or self.line else self.function

    @classmethod
    def read(cls, text: str) -> "Place":
        """Return the place that `str` wrote as this text."""
        parts = _PLACE.match(text)
        return cls(parts[3], parts[1], int(parts[2])) if parts else cls(text, "", 0)


def last_parts(path: str, count: int) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-count:])


_PLACE = re.compile(r"(.*?):(-?\d{1,18}) (.+)$", re.DOTALL)


class Origin(IntEnum):
    """The origin of a source file's code, ordered from native code to the user's own code.

    `NATIVE` is C, C++ or no file at all. `RUNTIME` is PyTorch, the standard library, helper packages that only pass
    calls on, and the recorders of this project. `PACKAGE` is any other installed package, such as `transformers`, which
    the user chose but did not write. `USER` is everything else.
    """

    NATIVE = 0
    RUNTIME = 1
    PACKAGE = 2
    USER = 3


# `libc.so.6` and `Module.cpp` are native, `utils.h5.py` is not. Allocator snapshots write `??` where no file is known.
NATIVE = re.compile(r"^$|^\?\?$|\.(cpp|cc|cu|cuh|h|hpp|c|S|so|o)(?!\w)")

RUNTIME = re.compile(
    r"(^|/)torch/|-packages/(einops|jaxtyping|numpy|triton)/|(^|/)lib/python[\d.]*/(?!(site|dist)-packages/)"
    # Code that torch.compile generates: nobody edits it.
    r"|(^|/)torchinductor_[^/]*/|(^|/)torch_compile_debug/"
    r"|^<|(trainer|workbench)/recorders/"
)
PACKAGE = re.compile(r"(^|/)(site|dist)-packages/")

_SCRIPT_NAMES = {"cmd", "code", "profile", "timeit", "trace"}
"""Modules of the standard library of which a user's script may have the name, because nothing in a training job imports
them; a script with another module's name would break the import of torch."""
_STANDARD_LIBRARY = sys.stdlib_module_names - _SCRIPT_NAMES
_CUT_PATH = re.compile(r"^(\w+)(\.py$|/)")
"""Matches a path without the folder of its `sys.path` entry, as traces and py-spy write paths: `typing.py`,
`asyncio/events.py`. The first group is a module or a package."""


@lru_cache(maxsize=1 << 16)
def origin_of(filename: str) -> Origin:
    """Return the origin of a file's code, judged by its path alone; the path may be truncated or a Windows path."""
    path = filename.replace("\\", "/")
    if NATIVE.search(path):
        return Origin.NATIVE
    if RUNTIME.search(path) or _is_standard_library(path):
        return Origin.RUNTIME
    return Origin.PACKAGE if PACKAGE.search(path) else Origin.USER


def _is_standard_library(path: str) -> bool:
    """Return whether a path that is cut after its entry of `sys.path` leads to a module of Python's standard library.

    >>> [_is_standard_library(path) for path in ("typing.py", "json/decoder.py", "train.py", "src/typing.py")]
    [True, True, False, False]
    """
    cut = _CUT_PATH.match(path)
    return cut is not None and cut[1] in _STANDARD_LIBRARY


def is_library(filename: str) -> bool:
    """Return whether a file is not the user's own: native code, PyTorch, Python itself or an installed package."""
    return origin_of(filename) is not Origin.USER
