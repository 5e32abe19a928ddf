"""Measure how far `workbench estimate --script` is from the measured peak of the same script.

    python -m benchmarks.scripts [NAME ...]

Each script of benchmarks/scripts runs for four steps on the CPU under our memory recorder, whose snapshot gives the
peak, and is rehearsed for the CPU. What the script made before its first forward pass and is no part of its model is
left out of both: the estimate does not count such data, and says so.
"""

import functools
import gc
import os
import runpy
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.stem: path for path in Path(__file__).parent.rglob("[!_]*.py")}
STEPS = 4
KEPT_BACK = ("lstm_text", "mlp_sgd", "adafactor", "unet_plateau", "nano_gpt")
"""The scripts that no rule was made with: those whose names have the smallest SHA-256 sums."""


class RecordedScript:
    """Records the memory of a script's first steps from outside; the script itself has no line for it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._recorder: Any = None
        self._step, self._optim = ExitStack(), ExitStack()
        self._first: object = None
        self._number = 0

    def run(self, script: str) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

        register_module_forward_pre_hook(self._before_forward)
        register_optimizer_step_pre_hook(lambda *_: self._optim.enter_context(self._recorder.phase("optim")))
        Optimizer.profile_hook_step = staticmethod(self._followed(Optimizer.profile_hook_step))
        torch.autograd.backward = self._in_phase("bwd", torch.autograd.backward)
        sys.argv = [script]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")

    def _before_forward(self, module: Any, _: object) -> None:
        if self._recorder is not None or next(module.parameters(), None) is None:
            return
        from torch import nn

        from workbench.recorders.memory.cpu_history import LiveBlocks
        from workbench.recorders.memory.recorder import MemoryRecorder

        LiveBlocks.add_found = lambda *_: None  # type: ignore[method-assign]
        alive = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
        inner = {id(child) for each in alive for child in each.children()}
        roots = [each for each in alive if id(each) not in inner]
        self._recorder = MemoryRecorder(self._folder, nn.ModuleList(roots), None, freq=STEPS, window=STEPS)
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        self._step.enter_context(self._recorder.step(self._number))
        self._step.enter_context(self._recorder.phase("fwd"))

    def _followed(self, decorate: Any) -> Any:
        """Return PyTorch's decorator of `Optimizer.step`, changed so that `_after_step` runs after the whole call.

        A hook would run inside of the call. PyTorch 2.13 crashes every other time if a profiler with Python stacks
        starts there.
        """

        def decorated(step: Any) -> Any:
            inner = decorate(step)

            @functools.wraps(inner)
            def outer(optimizer: object, *args: Any, **kwargs: Any) -> Any:
                result = inner(optimizer, *args, **kwargs)
                self._after_step(optimizer)
                return result

            return outer

        return decorated

    def _in_phase(self, name: str, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            with self._recorder.phase(name):
                function(*args, **kwargs)

        return run

    def _after_step(self, optimizer: object) -> None:
        self._optim.close()
        self._first = self._first or optimizer
        if optimizer is not self._first:
            return
        self._step.close()
        if self._number == STEPS:
            os._exit(0)
        self._begin()


def measured(name: str, folder: str) -> tuple[int, dict[str, int]]:
    """Return the (peak in bytes, bytes by category) of a real run of the script."""
    from analyzers.memory import analyze
    from analyzers.run import Kind, discover

    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.scripts", "--record", folder, name],
        check=True, capture_output=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    [device] = analyze(discover(Path(folder)).of(Kind.SNAPSHOT)).data.devices
    return device.peak_allocated_bytes, device.categories


def estimated(name: str) -> tuple[int, dict[str, int]]:
    """Return the estimated (peak in bytes, bytes by category) of the script on the CPU."""
    from workbench.commands.estimate import estimate_script
    from workbench.launch.plan import Request

    [rank] = estimate_script(SCRIPTS[name], [], Request(), "cpu", None).data.ranks
    return rank.peak_bytes, rank.categories


def main() -> None:
    names = sys.argv[1:] or sorted(SCRIPTS)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            (real, held), (rehearsed, foreseen) = measured(name, folder), estimated(name)
        print(f"{name:18} {real:>12,} {rehearsed:>12,} {rehearsed / real - 1:>+8.2%}", flush=True)
        for category in sorted({*held, *foreseen}):
            print(f"    {category:18} {held.get(category, 0):>12,} {foreseen.get(category, 0):>12,}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        RecordedScript(sys.argv[2]).run(str(SCRIPTS[sys.argv[3]]))
    else:
        main()
