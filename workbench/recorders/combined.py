"""All recorders in one class, for a training loop that calls them itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from workbench.recorders.files import RankInfo
from workbench.recorders.hang.flight_recorder import FlightRecorder
from workbench.recorders.memory.recorder import MemoryRecorder, on_cuda
from workbench.recorders.options import RecorderOptions
from workbench.recorders.own_files import harmless
from workbench.recorders.timing.garbage import marked_collections
from workbench.recorders.timing.profiler_traces import TraceRecorder
from workbench.recorders.timing.step_log import StepLine, StepRecorder
from workbench.recorders.timing.step_table import StepTable


class Recorders:
    """Records memory, traces, steps and hangs of one rank, as configured by `options`.

    Call `prepare` before the process group is created; create this object after the process group and the model. Call
    `failed` and `close` before the process group is destroyed.
    """

    def __init__(
        self,
        options: RecorderOptions,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        device = "cuda" if model is not None and on_cuda(model) else "cpu"
        timing = StepTable() if options.timing_breakdown and RankInfo.here().rank == 0 else None
        self.steps = StepRecorder(options.folder, device=device, timing=timing)
        self.flight = _start_flight(options) if dist.is_initialized() and options.trace_buf_size > 0 else None
        self.traces = _trace_recorder(options, device) if options.enable_profiling else None
        self.memory: MemoryRecorder | None = None
        if options.enable_memory_snapshot and model is not None:
            # On CPU the snapshots' profiler session makes the traces too, as only one session can be active.
            shared = self.traces.plan if self.traces and device == "cpu" else None
            self.traces = None if shared else self.traces
            folder = Path(options.folder) / options.save_memory_snapshot_folder
            self.memory = MemoryRecorder(
                folder,
                model,
                optimizer,
                freq=options.memory_snapshot_freq or options.profile_freq,
                window=options.memory_snapshot_window,
                last_step=options.memory_until,
                traces=shared,
                find_holders=options.find_holders,
            )
        self._profiled = False

    @staticmethod
    def prepare(options: RecorderOptions) -> None:
        """Set the environment variables that PyTorch reads when the process group is created."""
        FlightRecorder.prepare(options.folder, options.trace_buf_size)

    @contextmanager
    def step(self, step: int) -> Iterator[StepLine]:
        """Record the training step `step` inside this context.

        The context yields the step's `StepLine`, in which the training loop stores the loss and other values for the
        step log.
        """
        plan = self.traces.plan if self.traces else self.memory.traces if self.memory else None
        traced = plan is not None and plan.is_traced(step)
        with self.steps.step(step) as line:
            if self.traces:
                self.traces.begin(step)
            self._profiled = False
            with self._sessions(step, traced=traced) if traced or self.memory else nullcontext():
                yield line
            self._finish(line, traced=traced or (self.memory is not None and self.memory.is_occasional))

    @contextmanager
    def _sessions(self, step: int, *, traced: bool) -> Iterator[None]:
        """Record the allocations of a step if a memory snapshot needs them.

        If the step is profiled, also mark Python's garbage collections in the profiler's trace.
        """
        with ExitStack() as stack:
            if self.memory:
                stack.enter_context(self.memory.recording(step))
            self._profiled = traced or (self.memory is not None and self.memory.is_recording)
            if self._profiled:
                stack.enter_context(marked_collections())
            yield

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Record a phase of the step inside this context, such as data_wait, fwd, bwd or optim."""
        timed = self.steps.phase(name)
        return self._noted(timed, name) if self.memory or self._profiled else timed

    @contextmanager
    def _noted(self, timed: AbstractContextManager[None], name: str) -> Iterator[None]:
        """Record a phase in memory snapshots and in the profiler's trace too; the context `timed` measures it."""
        with ExitStack() as stack:
            stack.enter_context(timed)
            if self.memory:
                stack.enter_context(self.memory.phase(name))
            if self._profiled:
                stack.enter_context(record_function(name))
            yield

    def failed(self, error: BaseException) -> None:
        """Write the step log, the memory snapshot and the dumps that explain an error.

        Call this method before you raise the error again.
        """
        self.steps.stop()
        if self.memory:
            harmless(self.memory.failed)(error)  # the error itself and the other ranks' dumps matter more
        if self.flight:
            self.flight.failed(error, step=self.steps.current_step, phase=self.steps.current_phase)

    def close(self) -> None:
        """Record that this rank ended without an error."""
        # The steps come last, because their heartbeat says that this rank ended without an error.
        for recorder in (self.traces, self.memory, self.flight, self.steps):
            if recorder:
                recorder.close()

    def _finish(self, line: StepLine, *, traced: bool) -> None:
        if self.traces or self.memory:
            with self.steps.phase("profiler"):
                self._end_sessions()
        if traced:
            line.tag("profile")
        if self.memory and self.memory.is_due(line.step):
            line.tag("snapshot")
            with self.steps.phase("snapshot"):
                self.memory.write()
        if self.flight:
            line.seqs = self.flight.sequences()

    def _end_sessions(self) -> None:
        if self.traces:
            self.traces.end()
        if self.memory:
            self.memory.finish()


def _trace_recorder(options: RecorderOptions, device: str) -> TraceRecorder:
    """Return a recorder of profiler traces, configured by `options`, for the device type `device` (cpu or cuda)."""
    return TraceRecorder(
        Path(options.folder) / options.save_traces_folder,
        freq=options.profile_freq,
        warmup=options.profiler_warmup,
        active=options.profiler_active,
        device=device,
    )


def _start_flight(options: RecorderOptions) -> FlightRecorder:
    """Start a `FlightRecorder` and return it; from now on, dumps of this rank can be requested."""
    flight = FlightRecorder(
        options.folder, init_timeout_s=options.init_timeout_s, train_timeout_s=options.train_timeout_s
    )
    flight.start()
    return flight
