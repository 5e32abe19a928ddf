"""Let torchtitan train on a CPU without changing its files; the start-up hook calls this before torchtitan is imported.

On a machine without an accelerator, torchtitan assumes CUDA. These patches report the CPU as the device, add functions
of `torch.cuda` that torchtitan calls to `torch.cpu`, and replace what gloo and the CPU do not support. With an
accelerator, nothing is changed.
"""

import atexit
import contextlib
import functools
import os
import resource
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FSDPModule

utils: Any = torch._utils  # noqa: SLF001


def prepare() -> None:
    """Apply the patches of this module if there is no accelerator."""
    if utils._get_available_device_type() is not None:  # noqa: SLF001
        return
    utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001
    for name, function in _CPU_FUNCTIONS.items():
        setattr(torch.cpu, name, function)
    _sum_gradients()
    _profile_without_none()
    set_timeouts()
    _run_flex_attention_eagerly()
    _end_at_once()


def _resident_memory(_device: object = None) -> dict[str, int]:
    """Return the peak resident memory of this process, in place of an allocator's statistics."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}


def properties(_device: object = None) -> SimpleNamespace:
    """Return the properties of the CPU as if it were a CUDA device, with the memory of the machine."""
    return SimpleNamespace(name="CPU", total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def ignore(*_args: object, **_kwargs: object) -> None:
    """Accept any arguments and do nothing."""


_CPU_FUNCTIONS: dict[str, Any] = {
    "get_device_name": lambda _device=None: "CPU",
    "get_device_properties": properties,
    "current_device": lambda: 0,
    "set_device": ignore,
    "reset_peak_memory_stats": ignore,
    "empty_cache": ignore,
    "memory_stats": _resident_memory,
    "memory": SimpleNamespace(
        _record_memory_history=ignore, _snapshot=lambda _device=None: {"segments": [], "device_traces": []}
    ),
}
"""The functions that torchtitan calls in the module of its device and that `torch.cpu` does not have.

The CPU allocator keeps no history, so memory snapshots are empty. `set_rng_state` is left out on purpose: with it,
DTensor would try to offset the CPU's random numbers, and fail.
"""


def _sum_gradients() -> None:
    """Make FSDP sum gradients and divide them in a separate step, because gloo cannot scale while it sums."""
    set_factor = FSDPModule.set_gradient_divide_factor

    @functools.wraps(set_factor)
    def set_factor_and_sum(module: Any, factor: float) -> None:
        set_factor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_factor_and_sum  # type: ignore[method-assign,assignment]


def _profile_without_none() -> None:
    """Remove None from the activities of the profiler; torchtitan up to 0.2 passes None for an unknown device."""
    start = torch.profiler.profile.__init__

    @functools.wraps(start)
    def start_without_none(self: Any, *args: Any, activities: Any = None, **kwargs: Any) -> None:
        wanted = None if activities is None else [each for each in activities if each is not None]
        start(self, *args, activities=wanted, **kwargs)

    torch.profiler.profile.__init__ = start_without_none  # type: ignore[method-assign]


def set_timeouts() -> None:
    """Add `torch.distributed.set_timeout`, which torchtitan 0.3 calls after its first step, to a torch before 2.14."""
    if not hasattr(dist, "set_timeout"):
        private: Any = distributed_c10d
        dist.set_timeout = lambda timeout, group=None: private._set_pg_timeout(timeout, group)  # type: ignore[attr-defined]  # noqa: SLF001


def _run_flex_attention_eagerly() -> None:
    """Run FlexAttention without torch.compile, which has no backward pass of FlexAttention for the CPU."""
    with contextlib.suppress(ImportError):
        from torch.nn.attention import flex_attention

        flex: Any = flex_attention
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # noqa: SLF001
        flex._validate_device = ignore  # noqa: SLF001
        eager, compiled = (flex.flex_attention,), torch.compile

        @functools.wraps(compiled)
        def compile_others(model: Any = None, **kwargs: Any) -> Any:
            return model if model in eager else compiled(model, **kwargs)

        torch.compile = compile_others


def _end_at_once() -> None:
    """End the process immediately after a clean end of the training.

    A rank that used DTensor on gloo may abort after it has destroyed its process groups, and torchrun would report a
    failure. `atexit` runs its functions in reverse order of registration. This function is registered before the
    functions of the recorders, so it runs after them.
    """
    destroy: Callable[..., None] = dist.destroy_process_group
    ended = []

    @functools.wraps(destroy)
    def destroy_and_note(*args: Any, **kwargs: Any) -> None:
        destroy(*args, **kwargs)
        ended.append(True)

    def leave() -> None:
        if ended and not hasattr(sys, "last_value"):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    dist.destroy_process_group = destroy_and_note
    atexit.register(leave)
