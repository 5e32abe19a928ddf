"""Changes that let torchtitan 0.2 train on a CPU, made without editing its files. Import this before torchtitan."""

import os
import resource
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

PAGES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_stats(_: object = None) -> dict[str, int]:
    """Return the peak resident set instead of an allocator's peaks."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}


def sum_by_force(module: Any, factor: float) -> None:
    """Set the gradient factor and reduce by sums, because gloo has no operation that multiplies before it reduces."""
    DIVIDE(module, factor)
    module.set_force_sum_reduction_for_comms(True)


def profile(*given: Any, activities: Any = (), **more: Any) -> Any:
    """Return a profiler with the activities that this machine supports."""
    return PROFILE(*given, activities=[kind for kind in activities if kind is not None], **more)


DIVIDE, PROFILE = FSDPModule.set_gradient_divide_factor, torch.profiler.profile
MISSING: dict[str, Any] = {
    "get_device_name": lambda _=None: "CPU",
    "get_device_properties": lambda _=None: SimpleNamespace(total_memory=PAGES),
    "current_device": lambda: 0,
    "set_device": lambda _: None,
    "reset_peak_memory_stats": lambda *_: None,
    "empty_cache": lambda: None,
    "memory_stats": memory_stats,
}


def prepare() -> None:
    """Make the CPU look like a device that torchtitan supports."""
    torch._utils._get_available_device_type = lambda: "cpu"  # noqa: SLF001
    for name, function in MISSING.items():
        setattr(torch.cpu, name, function)
    FSDPModule.set_gradient_divide_factor = sum_by_force  # type: ignore[method-assign]
    torch.profiler.profile = profile  # type: ignore[misc,assignment]
