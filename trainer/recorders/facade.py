"""All recorders behind one small interface, for the training loop."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn

from trainer.recorders.options import RecorderOptions
from trainer.recorders.steps import StepLine, StepRecorder


class Recorders:
    """Everything that is recorded of a run, switched by `options`.

    Make it after the process group and the model; call `prepare` before the process group.
    """

    def __init__(
        self,
        options: RecorderOptions,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.folder = Path(options.folder)
        self.device = "cuda" if model is not None and any(p.is_cuda for p in model.parameters()) else "cpu"
        self.steps = StepRecorder(self.folder, device=self.device)

    @staticmethod
    def prepare(options: RecorderOptions) -> None:
        """Set the environment variables that PyTorch reads when the process group is made."""

    @contextmanager
    def step(self, step: int) -> Iterator[StepLine]:
        """Record one step; yields the line that it writes."""
        with self.steps.step(step) as line:
            yield line

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a phase of the step such as data_wait, fwd, bwd, optim."""
        with ExitStack() as stack:
            stack.enter_context(self.steps.phase(name))
            yield

    def failed(self, error: BaseException) -> None:
        """Write what an error leaves behind. Call it before raising the error on."""

    def close(self) -> None:
        """Mark a clean end."""
        self.steps.close()
