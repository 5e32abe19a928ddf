"""Find the native readers (`src`, built by `setup.py`), which return the same columns as those in Python, faster.

They are used wherever they could be built when this package was installed. If a native reader does not understand an
input, the reader in Python reads it instead, and decides what the input is and what is wrong with it.
"""

import functools
import importlib
from enum import StrEnum
from typing import Any

VERSION = 7
"""The version that the native readers must have: in a clone, those of another revision may lie beside these modules."""


class NativeState(StrEnum):
    USED = "used"
    NOT_BUILT = "not installed"
    NOT_LOADED = "cannot be loaded"
    OTHER_VERSION = "of another version"


@functools.cache
def native_module() -> Any | None:
    return installed_module() if native_state() is NativeState.USED else None


def native_state() -> NativeState:
    try:
        module = installed_module()
    except ImportError:
        return NativeState.NOT_LOADED
    if module is None:
        return NativeState.NOT_BUILT
    return NativeState.USED if module.VERSION == VERSION else NativeState.OTHER_VERSION


def installed_module() -> Any | None:
    """Return the module with the native readers, whatever its version; None if it was not built.

    Raises:
        ImportError: It was built for another system.
    """
    try:
        return importlib.import_module(f"{__name__}._readers")
    except ModuleNotFoundError:
        return None
