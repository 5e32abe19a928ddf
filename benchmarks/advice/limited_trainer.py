"""Train with a memory limit for tensors: `python -m benchmarks.advice.limited_trainer BYTES [flags of the trainer]`.

A CPU has no limit of its own for tensors. So after the first optimizer step, when parameters, gradients and the
optimizer's state exist, the process gets an RLIMIT_DATA of `BYTES` plus what its data takes beside the live tensors.
Set MALLOC_MMAP_THRESHOLD_=16384: then glibc maps each tensor by itself and gives it back as soon as it is freed.
"""

import ctypes
import gc
import resource
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainer.__main__ import main


def live_bytes() -> int:
    """Return the bytes of all storages of tensors that Python can see."""
    storages = {}
    for one in gc.get_objects():
        if isinstance(one, torch.Tensor) and not one.is_meta:
            local = one.to_local() if hasattr(one, "to_local") else one
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def limit_tensors(limit: int) -> None:
    """Let this process have at most `limit` bytes of tensors, and as much other data as it has now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    live = live_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (data - live + limit, resource.RLIM_INFINITY))
    print(f"limit {limit}, data {data}, live {live}", file=sys.stderr, flush=True)


def limit_after_first_step(limit: int) -> None:
    """Set the limit at the end of the first optimizer step of this process."""
    done: list[bool] = []

    def hook(*_: object) -> None:
        if not done:
            done.append(True)
            limit_tensors(limit)

    register_optimizer_step_post_hook(hook)


if __name__ == "__main__":
    limit_after_first_step(int(sys.argv.pop(1)))
    main()
