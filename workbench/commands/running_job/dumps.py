"""Implement `workbench hang --run` and `--pid`: take dumps of a job that hangs right now."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from analyzers.errors import InputError
from workbench.commands.running_job.rank_processes import descendants, environ, read_proc
from workbench.commands.running_job.stacks import stacks_of_job
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.python_path import command, environment

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
    folder = stacks_of_job(pid)
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
    words = read_proc(pid, "cmdline").split(b"\0")
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
