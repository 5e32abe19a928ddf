"""Real faults for learning and for tests: each breaks one rank of a run in one way.

| name | what the faulty rank does at `step` | what follows on gloo |
|---|---|---|
| oom | gets a batch 64 times larger, under a memory limit | its forward pass cannot allocate, and it fails |
| leak | from here on keeps the model's output of each step | its memory grows; the run completes |
| stuck | loops in Python | the other ranks wait |
| stuck_sleep | sleeps | the other ranks wait |
| stuck_gil | holds the GIL in C code that waits for a lock | the other ranks wait; its Python threads stop |
| skip | skips an all_reduce that the others call | they wait in it; it waits in its next collective |
| mismatch_shape | calls an all_reduce with an empty tensor | it continues at once; the others wait in it |
| mismatch_type | calls all_gather when the others call all_reduce | all ranks wait there |
| kill | kills itself | the others lose the connection |
| deadlock | calls collectives of two groups in reverse order | it waits in one group, the others in the other |
| straggler | from here on computes `seconds` longer in each forward pass | the others wait; the run completes |
| straggler_data | from here on gets its data `seconds` late | the others wait; the run completes |
| straggler_gc | from here on collects garbage for `seconds` in each step | the others wait; the run completes |
| nan | from here on its model returns NaN | the loss is NaN from here on |

The stragglers are late only in every `every`-th step.

With gloo, most size mismatches abort the process that receives too much data, and then it cannot write a dump. An
empty tensor, or another kind of collective, hangs with any number of ranks instead.
"""

import ctypes
import gc
import os
import resource
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

_MEMORY_MARGIN_BYTES = 192 << 20
_BATCH_FACTOR = 64
_STUCK_S = 3600.0
_COLLECTIVE_SIZE = 1024


Batch = TypeVar("Batch")


class FaultConfig(Protocol):
    """The fields of the configuration's section `[faults]`: which fault, on which rank, in which steps, how long."""

    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def every(self) -> int: ...


class Faults:
    """Hooks in the training loop that break one rank on purpose.

    Every rank must create this object and call its methods. `timeout_s` is the timeout of the job's collectives.
    """

    def __init__(self, config: FaultConfig, *, model: nn.Module, timeout_s: float) -> None:
        self.name, self.step, self.seconds, self.every = config.name, config.step, config.seconds, config.every
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        self.is_faulty_rank = rank == config.rank % ranks
        self.model, self.timeout_s = model, timeout_s
        self.groups = [
            dist.new_group(timeout=timedelta(seconds=timeout_s), group_desc=f"fault_{k}")
            for k in range(_GROUP_COUNTS.get(self.name, 0))
        ]
        self._current_step = 0
        self._leaked: list[object] = []
        if self.is_faulty_rank and self.name == "straggler":
            model.register_forward_pre_hook(lambda *_: self._compute_more())
        if self.is_faulty_rank and self.name == "nan":
            model.register_forward_hook(lambda _module, _inputs, output: self._make_nan(output))
        if self.is_faulty_rank and self.name == "leak":
            model.register_forward_hook(lambda _module, _inputs, output: self._leak(output))

    def before_step(self, step: int) -> None:
        """Cause the configured fault if it is due in this step.

        Call this method at the start of each step, after the recorders have begun to record the step.
        """
        self._current_step = step
        if self.name == "deadlock" and step == self.step:
            _all_reduce_in_each(self.groups[::-1] if self.is_faulty_rank else self.groups)
        elif self.name in _GROUP_COUNTS:
            _run_checked_collective(
                self.groups[0], self.name if self.is_faulty_rank and step == self.step else "healthy"
            )
        elif self.is_faulty_rank and step == self.step and self.name in _STEP_FAULTS:
            _STEP_FAULTS[self.name](self)

    def on_batch(self, step: int, batch: Batch) -> Batch:
        """Return the batch; if the configured fault is a delay or a too large batch, cause it first.

        Call this method in the phase data_wait. A batch is a tensor, or tensors in nested tuples, lists and dicts.
        """
        if not self.is_faulty_rank or step < self.step:
            return batch
        if self.name == "straggler_data" and self._is_late_in(step):
            time.sleep(self.seconds)
        if self.name == "straggler_gc" and self._is_late_in(step):
            _collect_garbage(self.seconds)
        return cast("Batch", _enlarge(batch)) if self.name == "oom" else batch

    def _compute_more(self) -> None:
        if self._is_late_in(self._current_step):
            compute(self.seconds)

    def _is_late_in(self, step: int) -> bool:
        return step >= self.step and (step - self.step) % self.every == 0

    def _make_nan(self, output: torch.Tensor) -> torch.Tensor:
        """Return NaN in place of the model's output on the faulty rank, from the configured step on.

        The loss and the gradients of this rank become NaN too. The reduction of the gradients spreads NaN to all ranks.
        """
        return output * float("nan") if self._current_step >= self.step else output

    def _leak(self, output: object) -> None:
        if self._current_step >= self.step:
            self._leaked.append(output)


def _run_checked_collective(group: dist.ProcessGroup, fault: str) -> None:
    """Run an all_reduce on `group`, or instead the mistake that `fault` names.

    The mistakes are an empty tensor (mismatch_shape), an all_gather (mismatch_type), and no call at all (skip).
    """
    value = torch.ones(0 if fault == "mismatch_shape" else _COLLECTIVE_SIZE, device=device_of(group))
    if fault == "mismatch_type":
        dist.all_gather([torch.empty_like(value) for _ in range(group.size())], value, group=group)
    elif fault != "skip":
        dist.all_reduce(value, group=group)


def _all_reduce_in_each(groups: list[dist.ProcessGroup]) -> None:
    for group in groups:
        dist.all_reduce(torch.ones(_COLLECTIVE_SIZE, device=device_of(group)), group=group)


def device_of(group: dist.ProcessGroup) -> str:
    return "cuda" if "nccl" in dist.get_backend(group) else "cpu"


def loop_in_python() -> None:
    end = time.monotonic() + _STUCK_S
    while time.monotonic() < end:
        pass


def hold_gil(seconds: float) -> None:
    """Hold the GIL for `seconds` in C code that waits for a lock; signals do not interrupt it."""
    libc = ctypes.PyDLL(None)
    lock = ctypes.create_string_buffer(64)  # all zero: a plain pthread mutex
    deadline = (ctypes.c_long * 2)(int(time.time() + seconds), 0)
    libc.pthread_mutex_lock(lock)
    # PyDLL keeps the GIL during a call; the second lock of a plain mutex by its owner waits until the deadline.
    libc.pthread_mutex_timedlock(lock, deadline)


def _limit_memory(fault: Faults) -> None:
    """Set a memory limit a little above the present use: for this process, or on CUDA for its device."""
    device = next(fault.model.parameters()).device
    if device.type == "cuda":
        room = torch.cuda.memory_reserved(device) + _MEMORY_MARGIN_BYTES
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info(device)[1], device)
        return
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    # Not RLIMIT_AS, which also counts mapped libraries and address space that is only reserved.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + _MEMORY_MARGIN_BYTES, hard))


def _enlarge(batch: object) -> object:
    """Return the batch with each tensor repeated along its first dimension; `batch` may be nested."""
    if isinstance(batch, torch.Tensor):
        return batch.repeat(_BATCH_FACTOR, *[1] * (batch.dim() - 1))
    if isinstance(batch, dict):
        return {key: _enlarge(value) for key, value in batch.items()}
    return type(batch)(_enlarge(value) for value in batch) if isinstance(batch, (tuple, list)) else batch


def compute(seconds: float) -> None:
    end, square = time.thread_time() + seconds, torch.ones(512, 512)  # large: few operations for a profiler to record
    while time.thread_time() < end:
        square @ square


def _collect_garbage(seconds: float) -> None:
    """Create cyclic garbage and collect it, repeatedly for `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        knots: list[Any] = []
        knots.extend([knots] for _ in range(100_000))
        del knots
        gc.collect()


_GROUP_COUNTS = {"skip": 1, "mismatch_shape": 1, "mismatch_type": 1, "deadlock": 2}
_STEP_FAULTS: dict[str, Callable[[Faults], None]] = {
    "oom": _limit_memory,
    "stuck": lambda _: loop_in_python(),
    "stuck_sleep": lambda _: time.sleep(_STUCK_S),
    # Longer than the timeout, so that the other ranks give up while the GIL is still held.
    "stuck_gil": lambda fault: hold_gil(1.5 * fault.timeout_s + 5),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
}
