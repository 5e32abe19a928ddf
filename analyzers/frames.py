"""Classify stack frames as library or user code; all analyzers use this definition."""

import re
from enum import IntEnum
from functools import lru_cache


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

# Traces and py-spy cut paths, so `torch/nn/modules/linear.py` and `threading.py` stand there without their folders.
RUNTIME = re.compile(
    r"(^|/)torch/|-packages/(einops|jaxtyping|numpy|triton)/|(^|/)lib/python[\d.]*/(?!(site|dist)-packages/)"
    r"|^<|^(copy|threading|contextlib|runpy)\.py$|(trainer|workbench)/recorders/"
)
PACKAGE = re.compile(r"(^|/)(site|dist)-packages/")


@lru_cache(maxsize=1 << 16)
def origin_of(filename: str) -> Origin:
    """Return the origin of a file's code, judged by its path alone; the path may be truncated or a Windows path."""
    path = filename.replace("\\", "/")
    if NATIVE.search(path):
        return Origin.NATIVE
    if RUNTIME.search(path):
        return Origin.RUNTIME
    return Origin.PACKAGE if PACKAGE.search(path) else Origin.USER


def is_library(filename: str) -> bool:
    """Return whether a file is not the user's own: native code, PyTorch, Python itself or an installed package."""
    return origin_of(filename) is not Origin.USER
