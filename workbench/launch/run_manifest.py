"""Write to a run's manifest `run.json` what only the launcher knows: how the job ended, and its first error."""

import contextlib
import errno
import fcntl
import os
import re
import resource
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import msgspec

from analyzers.files import json_bytes, read_json, replacing, status
from analyzers.steps.live import is_running
from workbench.recorders.secret_text import without_secrets

if TYPE_CHECKING:
    from workbench.launch.agent import Outcome


_LONGEST_TIME = 12
"""The most digits of a Unix time in seconds."""
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class Cause(TypedDict):
    """The first error of a job, as stored under `cause` in `run.json`.

    Its fields are the rank, its host (`node`), type and message of the error, the source line (`file`), the path of the
    rank's log, and the time.
    """

    rank: int
    node: str
    error: str
    message: str
    file: str
    log: str
    time_ns: int


class ExtraInfo(msgspec.Struct):
    """The details that torch's error handler adds to an error message; `timestamp` is in whole Unix seconds."""

    py_callstack: str = ""
    timestamp: str | int = ""


class ErrorMessage(msgspec.Struct):
    """The error message in the `error.json` of a worker, as torch's error handler writes it."""

    message: str = ""
    extra: ExtraInfo | None = msgspec.field(name="extraInfo", default=None)


class ErrorFile(msgspec.Struct):
    """The content of an `error.json`, which torch writes when a worker (the process of a rank) fails.

    For some errors, `message` is a plain text.
    """

    message: ErrorMessage | str


def first_error(logs: Path, since: float, first_rank: int = 0) -> Cause | None:
    """Return the earliest error that a worker wrote below `logs` since the Unix time `since`; None if there is none.

    A worker is torchrun's word for the process of a rank. Its log folder has the name of its local rank. `first_rank`,
    the global rank of this node's local rank 0, is added to get the global rank.
    """
    found = (path for path in logs.glob("**/attempt_*/*/error.json") if path.parent.name.isdecimal())
    causes = [cause for path in found if (cause := _read_error(path, since))]
    cause = earliest(causes)
    if cause is not None:
        cause["rank"] += first_rank
    return cause


def earliest(causes: Iterable[Cause]) -> Cause | None:
    return min(causes, key=lambda cause: cause["time_ns"], default=None)


def _read_error(path: Path, since: float) -> Cause | None:
    """Return the error in the `error.json` at `path`; None if it is invalid or older than the Unix time `since`.

    The rank in the result is the local rank.
    """
    changed_s = path.stat().st_mtime
    if changed_s < since:
        return None
    try:
        body = msgspec.convert(read_json(path), ErrorFile).message
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    written = ErrorMessage(message=body) if isinstance(body, str) else body
    extra = written.extra or ExtraInfo()
    error, _, rest = written.message.partition(":")
    return Cause(
        rank=int(path.parent.name),
        node=socket.gethostname(),
        error=error,
        message=rest.strip() or written.message,
        file=_innermost_frame(extra.py_callstack),
        log=str(path.with_name("stderr.log")),
        time_ns=int(_failure_time_s(str(extra.timestamp), changed_s) * 1e9),
    )


def _failure_time_s(timestamp: str, changed_s: float) -> float:
    """Return the Unix time at which a worker failed, in seconds.

    `timestamp` is the time in the worker's error file, in whole seconds; `changed_s` is the file's modification time.
    Ranks often fail within the same second, so the result is the more precise `changed_s`. But if the file was modified
    after the second of `timestamp`, it is a copy, and the result is the end of that second.
    """
    # A script may write anything; Python refuses to convert thousands of digits.
    is_time = timestamp.isdecimal() and len(timestamp) <= _LONGEST_TIME
    return min(changed_s, int(timestamp) + 0.999999) if is_time else changed_s


def _innermost_frame(callstack: str) -> str:
    """Return the last frame of a traceback as `file:line function`; empty if the text `callstack` has no frame."""
    frames = FRAME.findall(callstack)
    return "{}:{} {}".format(*frames[-1]) if frames else ""


class GroupsFile(msgspec.Struct):
    """The fields of `groups_R.json` that are read here; the recorders write this file about rank R.

    The fields are the global and the local rank, and the path of the error file, which is in the rank's log folder.
    """

    rank: int
    local_rank: int
    error_file: str


def _first_rank_here(dumps: Path, logs: Path) -> int | None:
    """Return the global rank of this node's local rank 0, from the recorders' files in `dumps`; None if unknown.

    `logs` is the log folder of this node's launch. If `groups_R.json` names a path in this folder, rank R runs on this
    node.
    """
    for path in dumps.glob("groups_*.json"):
        try:
            worker = msgspec.convert(read_json(path), GroupsFile)
        except (OSError, ValueError, msgspec.ValidationError):
            continue
        if logs.name in Path(worker.error_file).parts:
            return worker.rank - worker.local_rank
    return None


Manifest = dict[str, object]


class LauncherPart(msgspec.Struct):
    """The fields of `run.json` to which the launchers of several nodes contribute.

    Each launcher adds the exit codes of its ranks (`exit_codes`) and where it ran (`launches`). `cause` is the earliest
    error on any node.
    """

    exit_codes: dict[str, int] = {}
    launches: dict[str, object] = {}
    cause: Cause | None = None


def record_start(folder: Path, command: Sequence[str], world_size: int | None) -> None:
    """Write `run.json` when a job starts, for a command that does not write this file itself.

    `world_size` is None if it is unknown.
    """
    manifest = {
        "schema": "workbench.run/1",
        "argv": without_secrets(sys.argv),
        "command": without_secrets(command),
        "world_size": world_size,
        "started_ns": time.time_ns(),
        "ended_ns": None,
        "status": "running",
        "memory_limits": memory_limits(),
        "launcher": {"host": socket.gethostname(), "pid": os.getpid(), "started_ns": time.time_ns()},
    }
    write_manifest(folder / "run.json", {key: value for key, value in manifest.items() if key != "world_size" or value})


def memory_limits() -> dict[str, int]:
    """Return {name: bytes} of the soft memory limits that the job inherits from this process.

    The names are `data` and `address_space`; limits that are not set are left out.
    """
    kinds = {"data": resource.RLIMIT_DATA, "address_space": resource.RLIMIT_AS}
    limits = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY}


def record_lost_launcher(folder: Path, pid: int, ended: int, began: float) -> None:
    """Record in `run.json` that the launcher with process id `pid` was killed, and that the job failed.

    `ended` is the number of the job's processes that the guard process had to end. `began` is the Unix time at which
    the guard noticed the loss. If `ended` is 0 and the job has a final status already, nothing is written.
    """
    with settling(folder):
        manifest = read_manifest(folder / "run.json")
        lost = {"host": socket.gethostname(), "pid": pid, "lost": True, "ended_processes": ended}
        if ended or manifest.get("status") not in ("completed", "failed", "interrupted"):
            manifest |= {"status": "failed", "ended_ns": int(began * 1e9), "launcher": lost}
            write_manifest(folder / "run.json", {"schema": "workbench.run/1"} | manifest)


@contextlib.contextmanager
def settling(folder: Path) -> Iterator[None]:
    """Hold a lock on the `run.json` in `folder` inside this context.

    On a shared disk, the launchers of several nodes change this file; the lock makes them do it one after the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Not on `run.json` itself: each write replaces that file, and a lock on the old one excludes nobody.
    # It is not truncated, as a received folder may have a hard link to somebody's file there.
    lock = os.open(folder / ".settling", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def record_outcome(folder: Path, began: float, outcome: "Outcome") -> None:
    """Record the outcome of a launch in the `run.json` in `folder`; the launch began at the Unix time `began`."""
    with settling(folder):
        _write_outcome(folder / "run.json", began, outcome)


def _write_outcome(path: Path, began: float, outcome: "Outcome") -> None:
    """Add the outcome to the `run.json` at `path`, which the trainer and other launchers may already have written.

    A manifest that was last written before the Unix time `began` belongs to an earlier run, and is replaced.
    """
    manifest = read_manifest(path)
    # Not by `started_ns`: the launcher of another node may have begun, and written, before this one began.
    if not manifest or path.stat().st_mtime < began:
        manifest = {"schema": "workbench.run/1", "started_ns": int(began * 1e9)}
        manifest["argv"] = without_secrets(sys.argv)
    before = _launcher_part(manifest)
    manifest |= {
        "status": outcome.status,
        # The trainer, or the launcher of another node, may have written it.
        "ended_ns": manifest.get("ended_ns") or time.time_ns(),
        "exit_codes": before.exit_codes | {str(rank): code for rank, code in sorted(outcome.exit_codes.items())},
    }
    if outcome.exit_code is not None:
        manifest["exit_code"] = outcome.exit_code
    write_manifest(path, manifest | _node_part(path.parent, began, outcome, before))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write `run.json` atomically, so that readers never see an incomplete file; a new one is for its owner alone.

    On a full disk, the existing file is overwritten in the room that it has.

    Raises:
        FileExistsError: A file of the script has this name.
        OSError: The file cannot be written.
    """
    old = status(path)
    if old is not None and old.st_size and read_manifest(path).get("schema") != _SCHEMA:
        raise FileExistsError(errno.EEXIST, "a file of the script has this name", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json_bytes(manifest)
    try:
        with replacing(path, mode=0o600) as file:
            file.write(msgspec.json.format(content, indent=2))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _overwrite(path, content):
            raise


def _overwrite(path: Path, content: bytes) -> bool:
    """Write to a file in place if the new content fits into the blocks that the file has; return whether it does."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        before = os.fstat(descriptor)
        if (
            not stat.S_ISREG(before.st_mode)
            or before.st_nlink > 1
            or len(content) > max(before.st_size, before.st_blocks * 512)
        ):
            return False
        # White space after the end is no part of the document.
        text = content.ljust(before.st_size)
        return os.pwrite(descriptor, text, 0) == len(text)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _node_part(folder: Path, began: float, outcome: "Outcome", before: LauncherPart) -> Manifest:
    """Return two fields of the manifest: `launches`, with this node's launch, and `cause`, the earliest error so far.

    `folder` is the run's folder, `began` the Unix time at which the launch began, and `outcome` how it ended. `before`
    has the present values of these fields.
    """
    first = outcome.first_rank
    if first is None and outcome.logs:
        first = _first_rank_here(folder / "dumps", outcome.logs)
    cause = first_error(outcome.logs or folder / "logs", began, first or 0)
    this_node = {"host": socket.gethostname(), "first_rank": first}
    launches = before.launches | ({outcome.logs.name: this_node} if outcome.logs else {})
    return {"launches": launches, "cause": earliest(filter(None, (cause, before.cause)))}


def _launcher_part(manifest: Manifest) -> LauncherPart:
    """Return the fields of a manifest that launchers write; if one of them is malformed, all are empty."""
    known = {name: value for name in LauncherPart.__struct_fields__ if (value := manifest.get(name))}
    try:
        return msgspec.convert(known, LauncherPart)
    except msgspec.ValidationError:
        return LauncherPart()


def read_manifest(path: Path) -> Manifest:
    """Return the content of a `run.json`; empty if it does not exist or is not valid JSON."""
    try:
        return msgspec.convert(read_json(path), Manifest)
    except (OSError, ValueError, msgspec.ValidationError):
        return {}


# Move the files of an earlier job out of a run's folder, so that they are not mistaken for files of the new job.

_OURS = ("dumps", "steps", "profile_traces", "memory_snapshot", "health", "nodes", "run.json")
"""The files and folders that the launcher and the recorders write; the user's own files in the folder stay."""
_OUR_NAMES = re.compile(
    r"\..*|(?:rank|groups|p2p|new_groups|stacks|exit|thread|children|crash|heartbeat|nccl_ras|dmesg|nvidia_smi)_.*"
    r"|rank\d.*|collection\.json"
)
"""Matches the names of our files in these folders, in which the script may have files of its own."""
_OUR_LOGS = ("workbench_*", "stdout.log", "stderr.log")
_SCHEMA = "workbench.run/1"


def set_aside_earlier_run(folder: Path, more: tuple[str, ...] = ()) -> None:
    """Move the files of a finished run in `folder` to `previous/<start time of that run>/`.

    `more` has the names of other files and folders that the job's own program writes in each run. If the run is still
    in progress, nothing is moved: then the launcher of another node has already started this job.
    """
    manifest = read_manifest(folder / "run.json")
    if manifest.get("schema") != _SCHEMA or _is_running_elsewhere(manifest):
        return
    target = folder / "previous" / _start_stamp(manifest)
    found = [path for name in _OURS for path in _our_files(folder / name)] + [folder / name for name in more]
    found += [path for pattern in _OUR_LOGS for path in (folder / "logs").glob(pattern)]
    found += folder.glob(".collect_*")  # the name of that run at the receiver of its nodes' files
    for path in found:
        if path.exists():
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, place)


def _our_files(place: Path) -> list[Path]:
    """Return what is ours of a file or folder: itself, or some of its files if the script has written others there."""
    files = [path for path in place.rglob("*") if not path.is_dir()]
    nodes = {path.parent for path in place.glob("*/node.json")} if place.name == "nodes" else set()
    ours = [path for path in files if _OUR_NAMES.fullmatch(path.name) or not nodes.isdisjoint(path.parents)]
    return [place] if len(ours) == len(files) else ours


def _is_running_elsewhere(manifest: Manifest) -> bool:
    """Return whether the run of a manifest (`run.json`) is in progress, as far as this can be known.

    A launcher on another host cannot be checked, so it counts as running.
    """
    launcher = manifest.get("launcher")
    return manifest.get("status") == "running" and isinstance(launcher, dict) and is_running(launcher) is not False


def _start_stamp(manifest: Manifest) -> str:
    """Return the start time in a manifest as a UTC timestamp that is valid as a folder name."""
    started = manifest.get("started_ns")
    # Up to the year 9999: a hostile file may have any number.
    seconds = started / 1e9 if isinstance(started, int) and 0 <= started < 253_402_300_800 * 10**9 else time.time()
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"
