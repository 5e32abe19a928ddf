"""Attach the recorders to an unchanged training script.

`workbench launch -- COMMAND` puts this folder first in the PYTHONPATH of all processes of a job. So Python imports this
module at start-up. The module runs the user's own `sitecustomize`, removes this folder from the import path, and waits
until `torch.distributed` or `torch.optim` is imported. A process that imports neither pays one check per import.
"""

import os
import sys

# The import system itself, which is there already: `importlib.util` would import a dozen modules.
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder

TYPE_CHECKING = False  # the one of `typing` would cost each process milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_SETTINGS = os.environ.get("WORKBENCH_RECORD", "")
"""The settings of the recorders, read now: a script may clear its environment before it imports torch."""
_WATCHED = {
    "torch.distributed.distributed_c10d": "patch_distributed",
    "torch.optim.optimizer": "patch_optimizer",
}
TORCHTITAN = "torchtitan"


class Watcher:
    """An import hook (meta path finder) that patches two modules of torch, those in `_WATCHED`, after their import."""

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, _target: object = None) -> "ModuleSpec | None":
        """Return the module spec of a module in `_WATCHED`, changed so that the module is patched after its import.

        Return None for any other module; Python then finds the module as usual.
        """
        if name == TORCHTITAN:
            _prepare_torchtitan()
        if name not in _WATCHED:
            return None
        patch = _WATCHED.pop(name)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, "exec_module", executing(spec.loader.exec_module, patch))  # noqa: B010
        return spec


def executing(execute: "Callable[[ModuleType], None]", patch: str) -> "Callable[[ModuleType], None]":
    """Return a function that executes a module with `execute`, and then patches it.

    `patch` is the name of a function in `startup.hook`. If that function fails, the script continues without recorders.
    """

    def exec_module(module: "ModuleType") -> None:
        execute(module)
        try:
            getattr(hook(), patch)(module)
        except Exception as error:  # noqa: BLE001
            _raise_of_script(error)
            note(f"no recorders in this process: {error}")

    return exec_module


def note(text: str) -> None:
    """Print a line on stderr; do nothing where stderr is closed or cannot be written."""
    try:
        if sys.stderr is not None:
            print(f"workbench: {text}", file=sys.stderr, flush=True)
    except Exception as error:  # noqa: BLE001
        _raise_of_script(error)


def _raise_of_script(error: Exception) -> None:
    """Raise an exception again if it is the script's own, from a handler of a signal that has come meanwhile."""
    signals = sys.modules.get("workbench.recorders.signals")
    if signals is not None:
        signals.raise_of_script(error)


def _prepare_torchtitan() -> None:
    """Prepare this process for torchtitan before torchtitan is imported and chooses its device; only once."""
    global TORCHTITAN  # noqa: PLW0603
    TORCHTITAN = ""
    try:
        hook().patch_torchtitan()
    except Exception as error:  # noqa: BLE001
        _raise_of_script(error)
        note(f"torchtitan is not prepared for this machine: {error}")


def hook() -> "ModuleType":
    """Import and return `workbench.recorders.startup.hook`; this project is on sys.path only during the import."""
    import json

    root = json.loads(_SETTINGS)["root"]
    other = PathFinder.find_spec("workbench")
    if other is not None and os.path.dirname(os.path.dirname(other.origin or "")) != root:
        raise ImportError(f"{other.origin} has the name of our package")
    sys.path.append(root)
    try:
        __import__("workbench.recorders.startup.hook")
        setattr(sys.modules["workbench.recorders.startup.settings"], "at_start", _SETTINGS)  # noqa: B010
        return sys.modules["workbench.recorders.startup.hook"]
    finally:
        # The last occurrence, because the user may have the same folder earlier on the path.
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(root)]


def _run_own_sitecustomize() -> None:
    """Run the user's own module `sitecustomize`, which Python did not import because it found this module first."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if _SETTINGS:
        sys.meta_path.insert(0, Watcher())
    _run_own_sitecustomize()
