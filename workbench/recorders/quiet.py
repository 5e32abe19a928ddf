"""Keep torch from printing log lines about what only the recorders do, such as starting an HTTP server in the rank.

The levels are changed for the time of our own call and then restored, so that the script's own log lines are printed as
without recorders.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

_LIBRARIES = Path(torch.__file__).parent / "lib"
VARIABLE = "KINETO_LOG_LEVEL"
_ERROR, _SILENT, _PROFILER_DEFAULT = 2, 6, 4


@contextlib.contextmanager
def torch_warnings_hidden() -> Iterator[None]:
    """Hide warnings that torch's C++ code logs inside this context; errors are still printed."""
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(_LIBRARIES / "libc10.so")), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # a build of torch with another logger
        yield
        return
    before = level.value
    level.value = max(before, _ERROR)
    try:
        yield
    finally:
        level.value = before


@contextlib.contextmanager
def profiler_messages_hidden() -> Iterator[None]:
    """Hide the lines that the profiler's library, Kineto, logs inside this context."""
    try:
        library = ctypes.CDLL(str(_LIBRARIES / "libtorch_cpu.so"))
        level = ctypes.c_int.in_dll(library, "_ZN9libkineto6Logger14severityLevel_E")
    except (OSError, ValueError):
        yield
        return
    asked = os.environ.get(VARIABLE)
    before = level.value or _first_level(asked)
    level.value = _SILENT
    # Kineto sets its level from the environment at the start of the first session.
    os.environ[VARIABLE] = str(_SILENT)
    try:
        yield
    finally:
        level.value = before
        if asked is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = asked


def _first_level(asked: str | None) -> int:
    """Return the level that Kineto sets at the start of its first session; before, the level is 0."""
    if asked is None:
        return _PROFILER_DEFAULT
    try:
        return int(asked)
    except ValueError:
        return 0
