"""Run a training script on tensors without values (a rehearsal), and write the memory that it would need as JSON.

python -m trainer.estimate.script RESULT DEVICE RANKS SCRIPT [ARGUMENTS ...]
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from trainer.estimate.script import cuda, surroundings
from trainer.estimate.script.surroundings import Notes, ScriptHooks, ScriptSteps
from trainer.estimate.script.tensors import HOST, Choices, Counters, ScriptTensors, StatedValues, failed_line
from trainer.estimate.tracker import Peak

DEVICE_BYTES = 80 << 30
"""The memory that a simulated device reports to scripts that ask for it."""
MEASURE = "run it under `workbench launch --` on a small problem, and scale its snapshot with `inspect --what-if`"


class ScriptRehearsal:
    """Runs a script in this process on tensors without values, as rank 0 of `ranks`, on `device` (cuda or cpu).

    The estimate is written to the file `result` as soon as it is known. Then the process ends, although the script has
    not ended.
    """

    def __init__(self, script: str, device: str, ranks: int, result: Path) -> None:
        self._script, self._device, self._ranks, self._result = script, device, ranks, result
        self._counters, self._values, self._notes = Counters(), StatedValues(), Notes()
        self._choices = Choices()
        self._steps = ScriptSteps(self._counters, self._notes, self._finish)

    def run(self, arguments: list[str]) -> NoReturn:
        """Run the script to the end of its second step; write the estimate, or why there is none, and exit."""
        try:
            self._execute(arguments)
            self._finish()
        # Scripts end with SystemExit and KeyboardInterrupt as well, and each end needs an answer in the file.
        except BaseException as error:  # noqa: BLE001
            if isinstance(error, SystemExit) and (self._steps.finished or error.code in (None, 0)):
                self._finish()
            message, hint = refusal(self._script, error)
            self._write({"error": message, "hint": hint})

    def _execute(self, arguments: list[str]) -> None:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        changes = surroundings.patches(fake, self._counters, self._values, self._notes)
        if self._device == "cuda":
            changes |= cuda.patches(self._ranks, DEVICE_BYTES)
            kernels = cuda.stand_in_for_kernels()  # noqa: F841 - they last as long as it does
        changes |= {
            (torch.autograd, name): self._steps.backward(getattr(torch.autograd, name)) for name in ("backward", "grad")
        }
        sys.argv = [self._script, *arguments]
        give_way_to(Path(self._script).resolve().parent)
        # For an empty module: only the hooks on saved tensors are wanted, which belong to no module.
        hooks = ScriptHooks(nn.Module(), self._counters)
        tensors = ScriptTensors(fake, self._counters, self._values, on_cuda=self._device == "cuda")
        self._choices = tensors.choices
        with cuda.patched(changes), fake, tensors:
            self._steps.start()
            with hooks.note_saved_tensors():
                runpy.run_path(self._script, run_name="__main__")

    def _finish(self) -> NoReturn:
        if not self._steps.finished:
            message = f"{self._script} ended before an optimizer made a step"
            self._write({"error": message, "hint": "give the arguments with which it trains behind --"})
        peaks = self._counters.peaks()
        # The CPU is reported only if the script has nothing on a device.
        device = max(peaks, key=lambda name: (name != HOST, highest(peaks[name]).total))
        window = max(peaks[device], key=lambda name: peaks[device][name].total)
        peak = peaks[device][window]
        self._write(
            {
                "world_size": self._ranks,
                "mesh": {},
                "model": Path(self._script).name,
                "parameters": self._steps.parameters,
                "layers": 0,
                "assumptions": self._assumptions(),
                "device": device,
                "steps": self._steps.finished,
                "ranks": [
                    {
                        "first_rank": 0,
                        "count": self._ranks,
                        "peak_bytes": peak.total,
                        "peak_window": window,
                        "peak_line": peak.where,
                        "categories": {name: size for name, size in peak.categories.items() if size},
                        "modules": peak.modules,
                        "windows": {name: each.total for name, each in peaks[device].items()},
                    }
                ],
            }
        )

    def _assumptions(self) -> list[str]:
        single = (
            ["the script ended after its first step; later steps may need more"] if self._steps.finished < 2 else []
        )
        return [*self._values.assumptions(), *self._choices.assumptions(), *self._notes.sentences, *single]

    def _write(self, answer: dict[str, object]) -> NoReturn:
        """Write `answer` to the result file and end this process, without running the script's exit functions."""
        self._result.write_text(json.dumps(answer))
        # `os._exit` flushes nothing.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def give_way_to(folder: Path) -> None:
    """Put the script's folder first in the import path.

    If a module in this folder has the name of one of our packages, our package is removed from `sys.modules`. So the
    script imports its own module.
    """
    sys.path.insert(0, str(folder))
    for name in ("trainer", "workbench", "analyzers"):
        if (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists():
            for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
                del sys.modules[loaded]


def highest(windows: dict[str, Peak]) -> Peak:
    return max(windows.values(), key=lambda peak: peak.total)


def refusal(script: str, error: BaseException) -> tuple[str, str]:
    """Return (message, hint) for a script that failed with `error` on tensors without values."""
    line = failed_line(error) or script
    if isinstance(error, DynamicOutputShapeException):
        return f"{line}: the size of a result depends on values that are not known ({error.func})", MEASURE
    if isinstance(error, (UnsupportedOperatorException, DataDependentOutputException)):
        return f"{line}: {error.func} cannot be done without values", MEASURE
    if isinstance(error, SystemExit):
        return f"{line}: the script ended: {error.code}", "run it without the estimate, with the same arguments"
    if isinstance(error, MemoryError):
        return f"{line}: the data of the script needs more memory than this process may have", "use less data"
    text = str(error).strip().partition("\n")[0][:300]
    return f"{line}: {type(error).__name__}: {text}", "see whether it runs without the estimate; if so: " + MEASURE


def main() -> None:
    result, device, ranks, script, *arguments = sys.argv[1:]
    ScriptRehearsal(script, device, int(ranks), Path(result)).run(arguments)


if __name__ == "__main__":
    main()
