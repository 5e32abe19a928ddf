"""`workbench hang --run` and `--pid`: dumps of a job that hangs right now, by the collector of the recorders."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from analyzers.errors import InputError
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.python_path import command, environment

PATIENCE_S = 120
STACKS_FILE = ".stacks_"
"""The recorder of a rank holds a file of this name open in the dumps of its run."""
FIFO = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


def subjects(paths: Sequence[Path], run: Path | None, pids: Sequence[int]) -> list[Path]:
    """What is to be analysed: paths as given, and the folders of runs whose ranks are asked for dumps here and now.

    Raises:
        InputError: No rank of the run lives on this machine, or a process has no recorder to ask.
        UsageProblem: Nothing was given.
    """
    folders = list(dict.fromkeys([*([run] if run else []), *map(folder_of, pids)]))
    if not folders and not paths:
        raise UsageProblem("hang: nothing to look at", "give a folder of dumps, --run FOLDER or --pid PID")
    for folder in folders:
        collect(folder)
    return [*paths, *folders]


def collect(folder: Path) -> None:
    """Take one set of dumps of all ranks on this machine, in a process of its own."""
    note(f"asking the ranks of {folder} for their dumps, twice")
    collector = command("workbench.recorders.hang.collector", str(folder), "--once")
    try:
        done = subprocess.run(
            collector, capture_output=True, text=True, check=False, env=environment(), timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{folder}: the ranks gave no answer in {PATIENCE_S} s", "is its file system alive?"
        ) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["the collector failed"])[-1]
        raise InputError(why, f"what was recorded before: workbench hang {folder}")
    note(f"dumps in {done.stdout.strip()}")


def folder_of(pid: int) -> Path:
    """The run folder of a process that has a recorder, or has started one that does, as a launcher has its ranks."""
    if not Path("/proc/self/fd").is_dir():
        raise UsageProblem("--pid needs Linux", "give the folder of the job with --run")
    try:
        list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError as error:
        raise InputError(f"no process {pid} on this machine", "ranks of other machines are asked there") from error
    except PermissionError as error:
        raise InputError(f"process {pid} belongs to somebody else", "ask as the user who runs the job") from error
    folder = next((found for one in family(pid) if (found := held_folder(one))), None)
    if folder is None:
        what = f"process {pid} ({command_of(pid)}) has no recorder that could be asked"
        raise InputError(what, without_recorder(pid))
    return folder


def family(pid: int) -> Iterator[int]:
    """A process, and all that it has started."""
    yield pid
    for child in read(pid, f"task/{pid}/children").split():
        yield from family(int(child))


def held_folder(pid: int) -> Path | None:
    """The run folder of a rank, by the file that its recorder holds open."""
    try:
        targets = [Path(os.path.realpath(link)) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return None
    held = (t for t in targets if t.name.startswith(STACKS_FILE) and t.parent.name == "dumps")
    return next((target.parent.parent for target in held), None)


def command_of(pid: int) -> str:
    words = read(pid, "cmdline").split(b"\0")
    return b" ".join(words).decode(errors="replace").strip()[:80] or "no command line"


def without_recorder(pid: int) -> str:
    """What can be had of a process that was started without one; its sockets are its own, so none is touched."""
    settings = dict(part.partition(b"=")[::2] for part in read(pid, "environ").split(b"\0"))
    if fifo := settings.get(FIFO.encode()):
        rank = settings.get(b"RANK", b"").decode()
        return (
            f"its NCCL dumps on request: echo 1 > {fifo.decode()}{rank}.pipe, on every rank, then workbench hang FOLDER"
        )
    return (
        f"its stacks now: py-spy dump --pid {pid} > stacks_RANK.txt; for next time, two lines in the script:"
        " `from workbench import recorders` and, after init_process_group, `recorders.start(FOLDER)`"
    )


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
