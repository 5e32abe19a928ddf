"""Find the processes on this machine that are ranks of a job without recorders, by reading /proc."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from analyzers.errors import Exit, InputError, MissingExtra
from analyzers.files import write_whole
from analyzers.words import quantity, rank_names
from workbench.collect import Sender, has_ended, node_name, signals_remembered
from workbench.command_options.options import on_terminal
from workbench.commands.analyse import open_folder
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.python_path import command, environment
from workbench.remote.urls import without_credentials
from workbench.watch.follow import follow

Scheme = tuple[str, str, str, str]
_RANK_NAMES: tuple[Scheme, ...] = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""The environment variables of each kind of launcher, as (rank, world size, local rank, number of local ranks).

An empty name means that the launcher sets no such variable.
"""
_JOB_NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE")
"""The environment variables that have the same value in all ranks of a job, and so identify the job."""
_TORCH_LIBRARY = b"libtorch"


@dataclass(frozen=True)
class RankProcess:
    """A rank and its process id, and the numbers of ranks in the job and on this node (0: unknown)."""

    rank: int
    pid: int
    world_size: int = 0
    local_rank: int | None = None
    local_size: int = 0


def _find_ranks(pid: int) -> list[RankProcess]:
    """Return the ranks on this machine of the job to which process `pid` belongs; empty if there are none.

    `pid` is a rank or the launcher of the job. Ranks that another launcher of the same job has started are included.
    """
    members = [member for member in descendants(pid) if _uses_torch(member)]
    # Within a Slurm job torchrun itself has the variables of a task, and its ranks have both.
    for scheme in _RANK_NAMES:
        if placed := [member for member in members if place_of(member, scheme)]:
            return _ranks_of_job(job_of(placed[0]), scheme)
    return []


def _ranks_of_job(job: tuple[str, ...], scheme: Scheme) -> list[RankProcess]:
    """Return all ranks of a job on this machine, ordered by rank.

    `job` has the values of environment variables that identify the job, as `job_of` returns them. `scheme` has the
    names of the variables with the rank and the world size, such as RANK and WORLD_SIZE.
    """
    every = {p: place for p in processes() if job_of(p) == job and _uses_torch(p) and (place := place_of(p, scheme))}
    # Workers of a data loader have the variables of their rank too: the rank itself is the process above them.
    tops = [p for p, place in every.items() if (above := every.get(_parent_of(p))) is None or above.rank != place.rank]
    # Reversed, so that of two processes with one rank the older one counts.
    ranks = {every[p].rank: every[p] for p in sorted(tops, reverse=True)}
    return [ranks[number] for number in sorted(ranks)]


def _torch_processes(pid: int) -> list[int]:
    return [member for member in descendants(pid) if _uses_torch(member)]


def place_of(pid: int, scheme: Scheme) -> RankProcess | None:
    settings = environ(pid)
    rank, size, local_rank, local_size = (whole(settings.get(name)) for name in scheme)
    return None if rank is None else RankProcess(rank, pid, size or 0, local_rank, local_size or 0)


def job_of(pid: int) -> tuple[str, ...]:
    settings = environ(pid)
    return tuple(settings.get(name, "") for name in _JOB_NAMES)


def processes() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*"))


def descendants(pid: int) -> Iterator[int]:
    """Yield `pid` and the ids of all processes that it or its children have started, in the order of their start."""
    yield pid
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for child in _read_proc(pid, f"task/{task.name}/children").split():
            yield from descendants(int(child))


def _uses_torch(pid: int) -> bool:
    return _TORCH_LIBRARY in _read_proc(pid, "maps")


def _parent_of(pid: int) -> int:
    # The name of a program, in parentheses, may contain parentheses and spaces itself.
    fields = _read_proc(pid, "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def environ(pid: int) -> Mapping[str, str]:
    entries = _read_proc(pid, "environ").decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _read_proc(pid: int, name: str) -> bytes:
    """Return the content of a file in `/proc/PID`; empty if the process has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


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


def _stacks_of_job(pid: int) -> Path | None:
    """Write the stacks of all ranks of a job on this machine to a new folder, and return this folder.

    `pid` is the process id of a rank of the job or of its launcher. Return None if no PyTorch job has this process.

    Raises:
        MissingExtra: py-spy is not installed.
        InputError: py-spy is not permitted to read the processes.
    """
    ranks = _find_ranks(pid)
    if not ranks and not _torch_processes(pid):
        return None
    tool = py_spy()
    if tool is None:
        raise MissingExtra(
            f"process {pid} has no recorders, and py-spy, which reads stacks without, is missing", _NO_PY_SPY
        )
    # Processes that torch.multiprocessing starts have no rank in the environment with which they started.
    if len(ranks) < 2:
        ranks = _spawned_ranks(tool, _torch_processes(ranks[0].pid if ranks else pid)) or ranks
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
    if not all(rank.local_size == world_size for rank in ranks):
        return []
    return sorted(set(range(world_size)).difference(rank.rank for rank in ranks))


_TIMEOUT_S = 120
_STACKS_FILE = ".stacks_"
"""The prefix of the name of a file in the run folder's `dumps` that a rank's recorder keeps open."""
_DUMP_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_COMMAND_LENGTH = 80


def paths_to_read(paths: Sequence[Path], run: Path | None, pids: Sequence[int]) -> list[Path]:
    """Take dumps of the given run and processes; return `paths` and the folders of these dumps.

    Ranks with our recorders write dumps themselves. For ranks without recorders, py-spy reads the stacks.

    Raises:
        InputError: No rank of the run is on this machine, or a process is neither a rank nor a launcher.
        UsageProblem: No path, run or process was given.
    """
    if run is None and not pids and not paths:
        raise UsageProblem("hang: nothing to read", "give a folder of dumps, --run FOLDER or --pid PID")
    recorded = {pid: run_folder(pid) for pid in pids}
    folders = dict.fromkeys([*([run] if run else []), *(folder for folder in recorded.values() if folder)])
    for folder in folders:
        _collect_dumps(folder)
    seen = [read_stacks(pid) for pid, folder in recorded.items() if folder is None]
    return [*paths, *folders, *seen]


def read_stacks(pid: int) -> Path:
    """Read the stacks of all ranks of a job without recorders, and return the new folder with the stacks.

    Raises:
        InputError: The process `pid` is neither a rank nor the launcher of one.
    """
    folder = _stacks_of_job(pid)
    if folder is None:
        raise InputError(f"process {pid} ({_command_line(pid)}) has no recorder to ask", _without_recorder(pid))
    return folder


def _collect_dumps(folder: Path) -> None:
    """Take one set of dumps of all ranks on this machine of the run in `folder`, in a separate process."""
    note(f"asking the ranks of {folder} for their dumps, twice")
    collector = command("workbench.recorders.hang.collector", str(folder), "--once")
    try:
        done = subprocess.run(
            collector, capture_output=True, text=True, check=False, env=environment(), timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{folder}: the ranks did not answer within {_TIMEOUT_S} s", "check that its file system responds"
        ) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["the collector failed"])[-1]
        raise InputError(why, f"to read what was recorded before: workbench hang {folder}")
    note(f"dumps in {done.stdout.strip()}")


def run_folder(pid: int) -> Path | None:
    """Return the run folder to which the recorder of process `pid`, or of a process that it started, writes.

    Return None if none of these processes has a recorder.

    Raises:
        InputError: There is no such process, or it belongs to another user.
    """
    if not Path("/proc/self/fd").is_dir():
        raise UsageProblem("--pid needs Linux", "give the folder of the job with --run")
    try:
        list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError as error:
        raise InputError(f"no process {pid} on this machine", "run this on the machine of the process") from error
    except PermissionError as error:
        raise InputError(f"process {pid} belongs to another user", "run this as the user of the job") from error
    return next((folder for member in descendants(pid) if (folder := _recorder_folder(member))), None)


def _recorder_folder(pid: int) -> Path | None:
    """Return the run folder of a rank, derived from a file that its recorder has open; None without a recorder."""
    try:
        targets = [Path(os.path.realpath(link)) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return None
    stacks = (path for path in targets if path.name.startswith(_STACKS_FILE) and path.parent.name == "dumps")
    return next((path.parent.parent for path in stacks), None)


def _command_line(pid: int) -> str:
    words = _read_proc(pid, "cmdline").split(b"\0")
    return b" ".join(words).decode(errors="replace").strip()[:_COMMAND_LENGTH] or "command line unknown"


def _without_recorder(pid: int) -> str:
    """Return a hint on how to get dumps of a process that was started without a recorder."""
    # Nothing is sent to sockets of the process: they belong to its own program.
    settings = environ(pid)
    if pipe := settings.get(_DUMP_PIPE):
        rank = settings.get("RANK", "")
        return f"for its NCCL dumps: echo 1 > {pipe}{rank}.pipe, the same on every rank, then workbench hang FOLDER"
    return (
        f"for its stacks: py-spy dump --pid {pid} > stacks_RANK.txt; for dumps next time, add two lines to the script:"
        " `from workbench import recorders` and, after init_process_group, `recorders.start(FOLDER)`"
    )


def watch(folder: Path, *, tui: bool) -> Exit:
    """Show the job that writes to `folder` until it ends or the user leaves, and return the exit status.

    The folder may be created later. With `tui`, the terminal app shows the job, if this process runs on a terminal.
    Otherwise lines of text are printed.

    Raises:
        InputError: `folder` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: not a folder", "give the folder that the job writes to, its job.dump_folder")
    if not folder.exists():
        note(f"waiting for {folder}, which does not exist yet  (Ctrl+C leaves)")
    if not tui or not on_terminal():
        follow(folder)
        return Exit.OK
    from workbench.tui.terminal_app import run_app
    from workbench.watch.app import WatchApp

    return open_folder(folder) if run_app(WatchApp(folder)) else Exit.OK


def collect(folder: Path, to: str, nodes: int) -> Exit:
    """Write the files of `folder` to the URL `to` until its job has ended or a signal comes; then write the rest.

    `nodes` is the number of nodes that will do so; 0 if unknown.

    Raises:
        WorkbenchError: The URL cannot be written to, or has the files of an earlier job.
    """
    node, place = node_name(), without_credentials(to)
    with signals_remembered() as is_told_to_end:
        sender = Sender(folder, to, node, nodes)
        note(f"writing {folder} to {place} as node {node}")
        sender.run(lambda: is_told_to_end() or has_ended(folder))
    note(f"all files of {folder} are at {place}; the answer of all nodes: workbench inspect {place}")
    return Exit.OK
