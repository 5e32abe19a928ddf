"""Record what a training job does: memory, profiler traces, hang dumps and step times.

In any training script, on every rank, after `init_process_group`:

    from workbench import recorders
    recorders.start("outputs")

This package needs the standard library and torch and nothing else of this project, so that any script can import it,
whatever modules lie beside that script. Importing it is cheap: torch is loaded when a name below is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.recorders.attach import Attached as Attached
    from workbench.recorders.attach import start as start
    from workbench.recorders.combined import Recorders as Recorders
    from workbench.recorders.options import RecorderOptions as RecorderOptions

__all__ = ["Attached", "RecorderOptions", "Recorders", "start"]

HOMES = {"Attached": "attach", "start": "attach", "Recorders": "combined", "RecorderOptions": "options"}


def __getattr__(name: str) -> object:
    """Return a public name of this package; its module, and torch with it, is imported only on first use."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
