"""All recorders behind one small interface, for the training loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from trainer.recorders.flight import FlightRecorder
from trainer.recorders.options import RecorderOptions
from trainer.recorders.steps import StepLine, StepRecorder


class Recorders:
    """Everything that is recorded of a run, switched by `options`.

    Make it after the process group and the model; call `prepare` before the process group. `failed` and `close` come
    before the process group is destroyed.
    """

    def __init__(
        self,
        options: RecorderOptions,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        folder = Path(options.folder)
        self.device = "cuda" if model is not None and any(p.is_cuda for p in model.parameters()) else "cpu"
        self.steps = StepRecorder(folder, device=self.device)
        self.flight = self._start_flight(options) if dist.is_initialized() and options.trace_buf_size > 0 else None

    @staticmethod
    def prepare(options: RecorderOptions) -> None:
        """Set the environment variables that PyTorch reads when the process group is made."""
        FlightRecorder.prepare(options.folder, options.trace_buf_size)

    @contextmanager
    def step(self, step: int) -> Iterator[StepLine]:
        """Record one step; yields the line that it writes."""
        with self.steps.step(step) as line:
            yield line
            if self.flight:
                self.flight.refresh()
                line.seqs = self.flight.sequences()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a phase of the step such as data_wait, fwd, bwd, optim."""
        with self.steps.phase(name):
            yield

    def failed(self, error: BaseException) -> None:
        """Write what an error leaves behind. Call it before raising the error on."""
        self.steps.stop()
        if self.flight:
            self.flight.failed(error, step=self.steps.now, phase=self.steps.phase_now)

    def close(self) -> None:
        """Mark a clean end."""
        if self.flight:
            self.flight.close()
        self.steps.close()

    @staticmethod
    def _start_flight(options: RecorderOptions) -> FlightRecorder:
        flight = FlightRecorder(
            options.folder, init_timeout_s=options.init_timeout_s, train_timeout_s=options.train_timeout_s
        )
        flight.start()
        return flight
