"""Record CUDA allocations of a training script that does not call the recorders; write a snapshot when memory runs out.

The blocks have no categories, because the script's model is not known.
"""

import pickle
from pathlib import Path

import torch

from workbench.recorders.files import RankInfo
from workbench.recorders.hang.rank_exit import is_out_of_memory
from workbench.recorders.memory.device_use import device_use
from workbench.recorders.memory.limits import resident_bytes
from workbench.recorders.own_files import save_bytes

_MAX_ENTRIES = 100_000


def record_history() -> None:
    """Make PyTorch record CUDA allocations with their Python stacks.

    C++ stacks would cost several times as much.
    """
    torch.cuda.memory._record_memory_history(max_entries=_MAX_ENTRIES, stacks="python")  # noqa: SLF001


def save(folder: Path, error: BaseException, *, finished_step: int) -> None:
    """Write a memory snapshot below `folder` if `error` reports a failed allocation and CUDA is in use.

    `finished_step` is the last step that has ended; its number is in the name of the snapshot's folder.
    """
    if not is_out_of_memory(error) or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
    _, total = torch.cuda.mem_get_info()
    rank = RankInfo.here().rank
    snapshot["workbench"] = {
        "schema": "workbench.snapshot/1",
        "rank": rank,
        "step": finished_step,
        "device": "cuda",
        "limit_bytes": total,
        "process_bytes": resident_bytes(),
        "exact": False,
        "made_up_segments": False,
        "lost_notes": 0,
        **device_use(),
    }
    path = folder / f"iteration_{finished_step}_exit" / f"rank{rank}_memory_snapshot.pickle"
    save_bytes(path, pickle.dumps(snapshot, protocol=4))
