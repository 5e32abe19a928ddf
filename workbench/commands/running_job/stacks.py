"""Implement `workbench hang --pid` for a job without recorders: read the stacks of all its ranks with py-spy."""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from analyzers.errors import InputError, MissingExtra
from analyzers.words import quantity, rank_names
from analyzers.writing import write_whole
from workbench.commands.running_job.rank_processes import RankProcess, find_ranks, torch_processes
from workbench.console import note

_PY_SPY_TIMEOUT_S = 30
_PAUSES_S = (1.5, 3.0)
"""The seconds before the second and the third reading of the stacks; the stack of a waiting rank stays the same."""
_HELPERS = re.compile(
    r"^ {4}\S.*(?:_worker_loop|resource_tracker\.py|forkserver\.py|compile_worker|torch/distributed/(?:run|elastic))",
    re.MULTILINE,
)
"""Matches frames in the stacks of data-loader workers and other helper processes, which are not ranks."""
_SPAWNER = re.compile(r"^\s+\S*(?:join|start_processes) \(.*torch/multiprocessing/spawn\.py", re.MULTILINE)
_SPAWNED_INDEX = re.compile(r"^\s+_wrap \(.*torch/multiprocessing/spawn\.py.*\n(?:\s+.*\n)*?\s+i: (\d+)", re.MULTILINE)
_NO_PY_SPY = "pip install 'torch-workbench[stacks]', which brings py-spy; or add the recorders to the script"


def stacks_of_job(pid: int) -> Path | None:
    """Write the stacks of all ranks of a job on this machine to a new folder, and return this folder.

    `pid` is the process id of a rank of the job or of its launcher. Return None if no PyTorch job has this process.

    Raises:
        MissingExtra: py-spy is not installed.
        InputError: py-spy is not permitted to read the processes.
    """
    ranks = find_ranks(pid)
    if not ranks and not torch_processes(pid):
        return None
    tool = py_spy()
    if tool is None:
        raise MissingExtra(
            f"process {pid} has no recorders, and py-spy, which reads stacks without, is missing", _NO_PY_SPY
        )
    # Processes that torch.multiprocessing starts have no rank in the environment with which they started.
    if len(ranks) < 2:
        ranks = _spawned_ranks(tool, torch_processes(ranks[0].pid if ranks else pid)) or ranks
    if not ranks:
        return None
    folder = Path(tempfile.mkdtemp(prefix=f"hang_{pid}_"))
    processes = ", ".join(f"{rank.rank} is {rank.pid}" for rank in ranks[:8])
    note(
        f"reading the stacks of {quantity(len(ranks), 'rank')} three times, into {folder} (process of rank {processes})"
    )
    _write_side_files(folder / "dumps", ranks)
    _take_stacks(tool, ranks, folder / "dumps", native=True)
    for number, pause in enumerate(_PAUSES_S, 2):
        time.sleep(pause)
        # Later samples only show whether a rank moved, for which Python frames are enough.
        _take_stacks(tool, ranks, folder / "dumps" / f"round_{number}", native=False)
    return folder


def py_spy() -> str | None:
    """Return the path of py-spy, on PATH or next to this Python interpreter; None if it is not installed."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _take_stacks(tool: str, ranks: Sequence[RankProcess], folder: Path, *, native: bool) -> None:
    """Write the stacks of all ranks to `folder`, read at nearly the same time.

    `tool` is the path of py-spy. With `native`, the stacks include C++ frames.

    Raises:
        InputError: No stack of any rank could be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=len(ranks)) as pool:
        texts = list(pool.map(lambda rank: stack_of(tool, rank.pid, native=native), ranks))
    for rank, text in zip(ranks, texts, strict=True):
        if not text.startswith(ERROR):
            write_whole(folder / f"stacks_{rank.rank}.txt", text)
    if all(text.startswith(ERROR) for text in texts):
        raise InputError(f"py-spy could not read process {ranks[0].pid}: {texts[0].removeprefix(ERROR)}", _PERMISSION)


ERROR = "Error: "
_PERMISSION = "run this as the user of the job, with sudo, or after: sysctl kernel.yama.ptrace_scope=0"


def stack_of(tool: str, pid: int, *, native: bool = False, with_locals: bool = False) -> str:
    """Return the stacks of all threads of a process as text, or `Error: ` and the reason why they cannot be read.

    `tool` is the path of py-spy. With `native`, the stacks include C++ frames, if the system can read these; such
    frames show whether a backward pass waits in a collective. With `with_locals`, they include local variables.
    """
    options = [*(["--native"] if native else []), *(["--locals"] if with_locals else [])]
    command = [tool, "dump", "--full-filenames", *options, "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PY_SPY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{ERROR}it did not answer within {_PY_SPY_TIMEOUT_S} s"
    if done.returncode == 0:
        return done.stdout
    if native:
        return stack_of(tool, pid)
    return ERROR + (done.stderr.strip().splitlines() or ["no reason given"])[0].removeprefix(ERROR)


def _spawned_ranks(tool: str, pids: Sequence[int]) -> list[RankProcess]:
    """Return the ranks that a script started with torch.multiprocessing; `pids` are its PyTorch processes.

    The rank is the index that `spawn` passed to the process. If this index cannot be read for all processes, they are
    numbered in the order in which they were started.
    """
    stacks = {pid: stack_of(tool, pid, with_locals=True) for pid in pids}
    found = [pid for pid, text in stacks.items() if not _HELPERS.search(text) and not _SPAWNER.search(text)]
    numbered = {int(match[1]): pid for pid in found if (match := _SPAWNED_INDEX.search(stacks[pid]))}
    by_rank = numbered if len(numbered) == len(found) else dict(enumerate(found))
    return [RankProcess(rank, pid, len(by_rank), rank, len(by_rank)) for rank, pid in sorted(by_rank.items())]


def _write_side_files(dumps: Path, ranks: Sequence[RankProcess]) -> None:
    """Write to `dumps` the files that recorders would have written beside the stacks.

    `groups_R.json` has the process id of rank R. `collection.json` has the ranks of this machine that have no process.
    """
    dumps.mkdir(parents=True)
    world_size = max([rank.world_size for rank in ranks] + [ranks[-1].rank + 1])
    for rank in (replace(rank, world_size=world_size) for rank in ranks):
        side = {
            "schema": "workbench.groups/1",
            "rank": rank.rank,
            "world_size": world_size,
            "local_rank": rank.local_rank,
            "host": socket.gethostname(),
            "pid": rank.pid,
            "groups": {},
        }
        write_whole(dumps / f"groups_{rank.rank}.json", json.dumps(side))
    gone = missing_ranks(ranks, world_size)
    if gone:
        note(f"{rank_names(gone)} of this machine {'has' if len(gone) == 1 else 'have'} no process")
    collection = {
        "schema": "workbench.collection/1",
        "reason": "asked",
        "detail": "stacks by py-spy",
        "asked_ns": time.time_ns(),
        "rounds": [
            {"round": 1, "asked_ns": time.time_ns(), "ranks": {str(rank): {"status": "exited"} for rank in gone}}
        ],
    }
    write_whole(dumps / "collection.json", json.dumps(collection))


def missing_ranks(ranks: Sequence[RankProcess], world_size: int) -> list[int]:
    """Return the ranks of a job that have no process; empty if some ranks run, or may run, on other machines."""
    if not all(rank.local_size == world_size for rank in ranks):
        return []
    return sorted(set(range(world_size)).difference(rank.rank for rank in ranks))
