"""Incidents that really happen: each breaks one rank of a run in one way, for learning and for tests.

| name | what the rank does at `step` | what follows on gloo |
|---|---|---|
| oom | its batch is many times larger while a limit holds its memory | its forward pass cannot allocate: it fails |
| leak | from here on it keeps what the model returns in each step | memory grows, the run completes |
| stuck | loops in Python | the others wait |
| stuck_sleep | sleeps | the others wait |
| stuck_gil | waits in C, holding the GIL, for a lock that never opens | the others wait; its Python threads stand |
| skip | goes by an all_reduce which the others join | they wait there, it waits in its next collective |
| mismatch_shape | brings an empty tensor to an all_reduce | it passes at once, the others wait there |
| mismatch_type | brings an all_gather where the others all_reduce | all wait there |
| kill | kills itself | the others lose the connection |
| deadlock | takes two groups in the other order | it waits in one group, the others in the other |
| straggler | from here on computes for `seconds` more in each forward pass | the others wait; the run completes |
| straggler_data | from here on its data come `seconds` late | the same |
| straggler_gc | from here on collects garbage for `seconds` a step | the same |
| nan | its weights become NaN | the loss is NaN from here on |

On gloo most mismatched sizes abort the process that receives too much, so that nothing can be asked any more; an empty
tensor and another kind of collective hang on any number of ranks.
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
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

MARGIN = 192 << 20
LARGER = 64
FOREVER_S = 3600.0
CHECKED = 1024


class FaultConfig(Protocol):
    """The `[faults]` section."""

    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Faults:
    """Hooks for the loop. All ranks make it and call it alike; one of them breaks.

    `timeout_s` is that of the job's collectives.
    """

    def __init__(self, config: FaultConfig, *, model: nn.Module, timeout_s: float) -> None:
        self.name, self.step, self.seconds = config.name, config.step, config.seconds
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        self.mine = rank == config.rank % ranks
        self.model, self.timeout_s = model, timeout_s
        self.groups = [
            dist.new_group(timeout=timedelta(seconds=timeout_s), group_desc=f"fault_{k}")
            for k in range(GROUPS.get(self.name, 0))
        ]
        self._now = 0
        self._kept: list[Any] = []
        if self.mine and self.name == "straggler":
            model.register_forward_pre_hook(lambda *_: self._compute_more())
        if self.mine and self.name == "nan":
            model.register_forward_hook(lambda _module, _inputs, output: self._spoil(output))
        if self.mine and self.name == "leak":
            model.register_forward_hook(lambda _module, _inputs, output: self._keep(output))

    def before_step(self, step: int) -> None:
        """Call at the beginning of a step, inside its record."""
        self._now = step
        if self.name == "deadlock" and step == self.step:
            cross(self.groups[::-1] if self.mine else self.groups)
        elif self.name in GROUPS:
            check(self.groups[0], self.name if self.mine and step == self.step else "healthy")
        elif self.mine and step == self.step and self.name in AT_ONCE:
            AT_ONCE[self.name](self)

    def on_batch(self, step: int, batch: Any) -> Any:
        """Call with a batch (tensors, also in tuples, lists, dicts) inside the phase data_wait; returns the batch."""
        if not self.mine or step < self.step:
            return batch
        if self.name == "straggler_data":
            time.sleep(self.seconds)
        if self.name == "straggler_gc":
            collect_garbage(self.seconds)
        return enlarge(batch) if self.name == "oom" else batch

    def _compute_more(self) -> None:
        if self._now >= self.step:
            compute(self.seconds)

    def _spoil(self, output: Any) -> Any:
        """NaN in place of this rank's logits; the gradients carry it to all ranks."""
        return output * float("nan") if self._now >= self.step else output

    def _keep(self, output: Any) -> None:
        if self._now >= self.step:
            self._kept.append(output)


def check(group: dist.ProcessGroup, how: str) -> None:
    """The collective of every step that one rank gets wrong in one way."""
    value = torch.ones(0 if how == "mismatch_shape" else CHECKED, device=device_of(group))
    if how == "mismatch_type":
        dist.all_gather([torch.empty_like(value) for _ in range(group.size())], value, group=group)
    elif how != "skip":
        dist.all_reduce(value, group=group)


def cross(groups: list[dist.ProcessGroup]) -> None:
    """One collective in each group, in the order given."""
    for group in groups:
        dist.all_reduce(torch.ones(CHECKED, device=device_of(group)), group=group)


def device_of(group: dist.ProcessGroup) -> str:
    """Where the tensors of a group's collectives live."""
    return "cuda" if "nccl" in dist.get_backend(group) else "cpu"


def loop_in_python() -> None:
    """Busy, as a loop whose end condition never comes true."""
    end = time.monotonic() + FOREVER_S
    while time.monotonic() < end:
        pass


def hold_gil(seconds: float) -> None:
    """Wait in C for a lock that this thread holds, keeping the GIL: signals do not end it either, only time."""
    libc = ctypes.PyDLL(None)
    lock = ctypes.create_string_buffer(64)  # all zero: a plain pthread mutex
    until = (ctypes.c_long * 2)(int(time.time() + seconds), 0)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_timedlock(lock, until)


def limit_memory(fault: Faults) -> None:
    """Let this process, or its device, hold hardly more than it does now."""
    device = next(fault.model.parameters()).device
    if device.type == "cuda":
        room = torch.cuda.memory_reserved(device) + MARGIN
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info(device)[1], device)
        return
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MARGIN, hard))


def enlarge(batch: Any) -> Any:
    """The batch with each tensor repeated along its first dimension."""
    if isinstance(batch, torch.Tensor):
        return batch.repeat(LARGER, *[1] * (batch.dim() - 1))
    if isinstance(batch, dict):
        return {key: enlarge(value) for key, value in batch.items()}
    return type(batch)(enlarge(value) for value in batch) if isinstance(batch, (tuple, list)) else batch


def compute(seconds: float) -> None:
    """Multiply matrices for some seconds of this thread's processor time."""
    end, square = time.thread_time() + seconds, torch.ones(512, 512)  # large: few operations for profilers to record
    while time.thread_time() < end:
        square @ square


def collect_garbage(seconds: float) -> None:
    """Make cyclic garbage and collect it for some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        knots: list[Any] = []
        knots.extend([knots] for _ in range(100_000))
        del knots
        gc.collect()


GROUPS = {"skip": 1, "mismatch_shape": 1, "mismatch_type": 1, "deadlock": 2}
AT_ONCE: dict[str, Callable[[Faults], None]] = {
    "oom": limit_memory,
    "stuck": lambda _: loop_in_python(),
    "stuck_sleep": lambda _: time.sleep(FOREVER_S),
    "stuck_gil": lambda fault: hold_gil(1.5 * fault.timeout_s + 5),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
}
