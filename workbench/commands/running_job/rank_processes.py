"""Find the processes on this machine that are ranks of a job without recorders, by reading /proc."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


def find_ranks(pid: int) -> list[RankProcess]:
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


def torch_processes(pid: int) -> list[int]:
    """Return the PyTorch processes among process `pid` and its descendants, in the order of their start."""
    return [member for member in descendants(pid) if _uses_torch(member)]


def place_of(pid: int, scheme: Scheme) -> RankProcess | None:
    """Return the rank of process `pid`, read from its environment variables; None if it is not a rank.

    `scheme` has the names of the variables.
    """
    settings = environ(pid)
    rank, size, local_rank, local_size = (whole(settings.get(name)) for name in scheme)
    return None if rank is None else RankProcess(rank, pid, size or 0, local_rank, local_size or 0)


def job_of(pid: int) -> tuple[str, ...]:
    """Return the values of the variables `_JOB_NAMES` in the environment of process `pid`; they identify its job."""
    settings = environ(pid)
    return tuple(settings.get(name, "") for name in _JOB_NAMES)


def processes() -> list[int]:
    """Return the ids of all processes on this machine."""
    return sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*"))


def descendants(pid: int) -> Iterator[int]:
    """Yield `pid` and the ids of all processes that it or its children have started, in the order of their start."""
    yield pid
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for child in read_proc(pid, f"task/{task.name}/children").split():
            yield from descendants(int(child))


def _uses_torch(pid: int) -> bool:
    """Return whether a process has loaded PyTorch."""
    return _TORCH_LIBRARY in read_proc(pid, "maps")


def _parent_of(pid: int) -> int:
    """Return the id of the parent process; 0 if it is unknown."""
    # The name of a program, in parentheses, may contain parentheses and spaces itself.
    fields = read_proc(pid, "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def environ(pid: int) -> Mapping[str, str]:
    """Return the environment with which a process was started; empty if it has ended or belongs to another user."""
    entries = read_proc(pid, "environ").decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def read_proc(pid: int, name: str) -> bytes:
    """Return the content of a file in `/proc/PID`; empty if the process has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def whole(text: str | None) -> int | None:
    """Return the value of an environment variable as a non-negative integer; None if it is anything else."""
    return int(text) if text and text.isdecimal() else None
