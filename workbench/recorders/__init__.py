"""Record a training job: memory snapshots, profiler traces, hang dumps and step times.

In any training script, on every rank, after `init_process_group` if there is a process group:

    from workbench import recorders
    recorders.start("outputs")

This package uses only the standard library and torch, and no other package of this project. So any script can import
it, even a script beside modules with the names of our packages. Importing it is fast: torch is loaded on first use of a
name.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.recorders.attach import Attached as Attached
    from workbench.recorders.attach import start as start
    from workbench.recorders.combined import Recorders as Recorders
    from workbench.recorders.memory.recorder import MemoryRecorder as MemoryRecorder
    from workbench.recorders.options import RecorderOptions as RecorderOptions
    from workbench.recorders.values.finite_check import check_finite as check_finite
    from workbench.recorders.values.tensor_recorder import record_tensors as record_tensors

__all__ = ["Attached", "MemoryRecorder", "RecorderOptions", "Recorders", "check_finite", "record_tensors", "start"]

HOMES = {
    "Attached": "attach",
    "start": "attach",
    "MemoryRecorder": "memory.recorder",
    "Recorders": "combined",
    "RecorderOptions": "options",
    "check_finite": "values.finite_check",
    "record_tensors": "values.tensor_recorder",
}


def __getattr__(name: str) -> object:
    """Return the object with the public name `name`, such as `start`; its module is imported on first use."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
