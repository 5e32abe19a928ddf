"""The rank of this process, and functions that write a file completely or not at all."""

import errno
import json
import os
import re
import resource
import socket
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.recorders import signals

_FOLDER_OF_STEP = re.compile(r"iteration_\d+(_exit)?")

_SPARE_DESCRIPTORS = 32
JOB_VARIABLE = "WORKBENCH_JOB"
"""The environment variable with the id of the job; `workbench launch` sets it."""
ENDING = ".ending"
"""The file in `dumps` with the id of the job that a person or scheduler ends, by a signal to `workbench launch`."""


@dataclass(frozen=True)
class RankInfo:
    """The rank and world size of this process, its host, and the number of restarts of the job (`attempt`)."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    pid: int
    attempt: int

    @classmethod
    def here(cls) -> "RankInfo":
        """Return the RankInfo of this process.

        It is read from RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and TORCHELASTIC_RESTART_COUNT. These variables
        may be missing if the script itself has started the ranks. Then the default process group gives the rank, and
        all ranks count as ranks of one node. Without a process group, the process is rank 0 of 1.
        """
        group = group_position()
        if group is not None and os.environ.get("RANK") != str(group[0]):
            rank, world_size = group
            return cls(rank, rank, world_size, world_size, socket.gethostname(), os.getpid(), attempt=0)
        number = {
            name: int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1), ("TORCHELASTIC_RESTART_COUNT", 0))
        }
        return cls(
            rank=number["RANK"],
            local_rank=number["LOCAL_RANK"],
            world_size=number["WORLD_SIZE"],
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", number["WORLD_SIZE"])),
            host=socket.gethostname(),
            pid=os.getpid(),
            attempt=number["TORCHELASTIC_RESTART_COUNT"],
        )


def group_position() -> tuple[int, int] | None:
    """Return (rank, world size) of the default process group; None if there is no group or torch is not imported."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` does with this as its `opener`: a new file is for its owner alone.

    What we write about a job has its arguments, its paths and what it prints.

    Raises:
        OSError: It cannot be opened, or it is a link or pipe, or a file that has another name, too (a hard link): what
            is written would go elsewhere.
    """
    # It is truncated only once it is known to be ours. Without O_NONBLOCK, a pipe that nobody reads from would wait.
    descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise FileExistsError(errno.EEXIST, "another file", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: readers never see a part of it; its folder is created if needed.

    A new file is for its owner alone; an existing one keeps its permissions if it is the user's, and no link.
    """
    require_room(len(content))
    make_folder_of(path)
    # With the process id, because two processes that write the same file must not share a draft.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    # What already has this name may be a link, or have another name, too.
    with signals.ignoring(FileNotFoundError):
        draft.unlink()
    try:
        draft.touch(mode=0o600)
        draft.chmod(_mode_of(path))
        draft.write_bytes(content)
        # A rename is atomic: a reader, or a run that is killed here, never leaves half a file.
        draft.replace(path)
    except OSError:
        with signals.ignoring(OSError):
            draft.unlink()
        raise


def _mode_of(path: Path) -> int:
    """Return the permissions for a file in place of `path`: those that the user gave the old one, else 0600."""
    try:
        old = path.lstat()
    except FileNotFoundError:
        return 0o600
    is_own = stat.S_ISREG(old.st_mode) and old.st_nlink == 1 and old.st_uid == os.geteuid()
    return old.st_mode & 0o777 if is_own else 0o600


def make_folder_of(path: Path) -> None:
    """Create the folder of a file that a recorder writes, with its parents, if there is none.

    Raises:
        OSError: It cannot be created, or it is the folder of one step and a link. A user may link the folder of a whole
            recording to another disk; the folder of one step is made by a recorder, so a link would lead elsewhere.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.is_symlink() and _FOLDER_OF_STEP.fullmatch(path.parent.name):
        raise FileExistsError(errno.EEXIST, "another folder", str(path.parent))


def remove_other(path: Path) -> None:
    """Remove what stands in place of a file of ours but is no regular file of its own: a link or a pipe.

    To write through a link would change a file that is not ours, and to open a pipe would wait for a reader.
    """
    with signals.ignoring(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            path.unlink()


def require_room(size: int) -> None:
    """Raise OSError if a file of `size` bytes would exceed RLIMIT_FSIZE.

    Where the script has restored the default effect of SIGXFSZ, the attempt to write it would end the process.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if resource.RLIM_INFINITY != limit < size:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def require_descriptors() -> None:
    """Raise OSError if so few file descriptors are left that the recorders could take those that the script needs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except FileNotFoundError:  # no Linux
        used = 0
    if limit - used < _SPARE_DESCRIPTORS:
        raise OSError(errno.EMFILE, f"only {limit - used} more open files are permitted")


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically, with the permissions that `write_bytes` describes."""
    write_bytes(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path, *, by_links: bool = False) -> Any:
    """Return the content of a JSON file, as `read_regular` reads it; None if there is none, or it is not valid JSON."""
    try:
        return json.loads(read_regular(path, by_links=by_links))
    except (OSError, ValueError, RecursionError) as error:
        signals.raise_of_script(error)
        return None


def read_regular(path: Path, *, by_links: bool = False) -> bytes:
    """Return the content of a regular file; with `by_links`, also if a link leads to it, such as in a cache of models.

    Raises:
        OSError: It cannot be read, or it is a link, a pipe or a device, which would lead elsewhere or never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if by_links else os.O_NOFOLLOW))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()
