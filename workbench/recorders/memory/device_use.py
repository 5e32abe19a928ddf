"""Ask the driver how much memory of a GPU is in use, and how much of it this process uses."""

import ctypes
import os

import torch
from torch import distributed

from workbench.recorders.memory.snapshot import Details
from workbench.recorders.signals import raise_of_script

_PROCESSES_AT_MOST = 256
_NOT_AVAILABLE = (1 << 64) - 1
"""The number that NVML returns for the memory of a process if the driver does not report it."""


class RunningProcess(ctypes.Structure):
    """NVML's `nvmlProcessInfo_t`: a process that has a context on a device."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def device_use() -> Details:
    """Return fields for a snapshot's entry `workbench` about the memory in use on the current CUDA device."""
    free, total = torch.cuda.mem_get_info()
    use: Details = {"device_used_bytes": total - free, "nccl_groups": nccl_groups()}
    own = process_bytes(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    return use if own is None else {**use, "device_process_bytes": own}


def nccl_groups() -> int:
    """Return the number of this rank's process groups that use NCCL; each that was used has a communicator."""
    if not distributed.is_available() or not distributed.is_initialized():
        return 0
    groups = distributed.distributed_c10d._world.pg_map.values()  # noqa: SLF001
    return sum("nccl" in backend for backend, _ in groups)


def process_bytes(uuid: str) -> int | None:
    """Return the bytes that this process uses on the GPU `uuid`, including its CUDA context.

    Return None if NVML does not report them.

    In a container, NVML reports process ids of the host, which do not match the ids inside. Then, if only one process
    uses the device, it is taken to be this process.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        processes = _running_processes(nvml, uuid)
    except (OSError, AttributeError) as error:
        raise_of_script(error)
        return None
    own = [one for one in processes if one.pid == os.getpid()] or (processes if len(processes) == 1 else [])
    known = [one.used_bytes for one in own if one.used_bytes != _NOT_AVAILABLE]
    return sum(known) if known else None


def _running_processes(nvml: ctypes.CDLL, uuid: str) -> list[RunningProcess]:
    """Return the processes with a CUDA context on the GPU `uuid`; empty if NVML answers with an error.

    Raises:
        AttributeError: This version of NVML lacks a function.
    """
    device, count = ctypes.c_void_p(), ctypes.c_uint(_PROCESSES_AT_MOST)
    found = (RunningProcess * _PROCESSES_AT_MOST)()
    # PyTorch omits the prefix with which NVML begins the UUID of a GPU.
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if nvml.nvmlInit_v2():
        return []
    try:
        if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device)):
            return []
        failed = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found)
        return [] if failed else list(found[: count.value])
    finally:
        nvml.nvmlShutdown()
