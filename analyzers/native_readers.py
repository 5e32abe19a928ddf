"""Find the optional native readers (`analyzers/native`), which return the same columns as Python's readers, faster.

They are a package of their own, `torch-workbench-native`. If a native reader does not understand an input, the reader
in Python reads it instead, and decides what the input is and what is wrong with it.
"""

import functools
import importlib
import os
from enum import StrEnum
from typing import Any

SWITCH = "WORKBENCH_NATIVE"
"""The environment variable that switches the native readers off if its value is 0."""
MODULE, VERSION = "torch_workbench_native", 6
"""The name of the module, and the version that it must have.

The two packages may be installed in versions that do not fit together.
"""


class NativeState(StrEnum):
    """The state of the native readers: whether they are used, and if not, why."""

    USED = "used"
    SWITCHED_OFF = "switched off"
    OTHER_VERSION = "of another version"
    NOT_INSTALLED = "not installed"


@functools.cache
def native_module() -> Any | None:
    """Return the module with the native readers; None if it is not installed, switched off or of another version."""
    return installed_module() if native_state() is NativeState.USED else None


def native_state() -> NativeState:
    """Return whether the native readers are used."""
    module = installed_module()
    if module is None:
        return NativeState.NOT_INSTALLED
    if os.environ.get(SWITCH) == "0":
        return NativeState.SWITCHED_OFF
    return NativeState.USED if module.VERSION == VERSION else NativeState.OTHER_VERSION


def installed_module() -> Any | None:
    """Return the module with the native readers, whatever its version; None if it is not installed."""
    try:
        return importlib.import_module(MODULE)
    except ImportError:
        return None
