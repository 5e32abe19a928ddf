"""Attach the recorders to a training script that stays as it is.

Python imports this module at its start where PYTHONPATH begins with this folder, as `workbench launch -- COMMAND` sets
it for all processes of a job. It runs the user's own `sitecustomize`, takes this folder out of the import path, and
waits until `torch.distributed` or `torch.optim` is imported: other processes pay for one look at each import.
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

HERE = os.path.dirname(os.path.abspath(__file__))
WATCHED = {
    "torch.distributed.distributed_c10d": "patch_distributed",
    "torch.optim.optimizer": "patch_optimizer",
}


class Watcher:
    """An import hook (meta path finder) that patches a watched module after it was imported."""

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, _target: object = None) -> "ModuleSpec | None":
        """Return the module spec that the other finders give for a watched module, extended by the patch.

        None for all other modules.
        """
        if name not in WATCHED:
            return None
        patch = WATCHED.pop(name)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, "exec_module", executing(spec.loader.exec_module, patch))  # noqa: B010
        return spec


def executing(execute: "Callable[[ModuleType], None]", patch: str) -> "Callable[[ModuleType], None]":
    """Return a function that executes a module as `execute` does, then applies the function `patch` of our hook to it.

    An error in the patch leaves the script as it is.
    """

    def exec_module(module: "ModuleType") -> None:
        execute(module)
        try:
            getattr(hook(), patch)(module)
        except Exception as error:  # noqa: BLE001
            print(f"workbench: no recorders in this process: {error}", file=sys.stderr)

    return exec_module


def hook() -> "ModuleType":
    """Return the module `workbench.recorders.startup.hook`; the entry in sys.path that finds it is removed again."""
    import json

    root = json.loads(os.environ["WORKBENCH_RECORD"])["root"]
    other = PathFinder.find_spec("workbench")
    if other is not None and os.path.dirname(os.path.dirname(other.origin or "")) != root:
        raise ImportError(f"{other.origin} has the name of our package")
    sys.path.append(root)
    try:
        __import__("workbench.recorders.startup.hook")
        return sys.modules["workbench.recorders.startup.hook"]
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(root)]


def run_own_sitecustomize() -> None:
    """Run the sitecustomize module that Python would have imported without ours."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("WORKBENCH_RECORD"):
        sys.meta_path.insert(0, Watcher())
    run_own_sitecustomize()
