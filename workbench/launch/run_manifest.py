"""Write to a run's manifest `run.json` what only the launcher knows: how the job ended, and its first error."""

import contextlib
import fcntl
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from analyzers.files import json_bytes, read_json
from analyzers.writing import replacing
from workbench.launch.cause import Cause, earliest, first_error, first_rank_here
from workbench.recorders.secret_text import without_secrets

if TYPE_CHECKING:
    from workbench.launch.agent import Outcome

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
    with (folder / ".settling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    """Write `run.json` atomically, so that readers never see an incomplete file; a new one is for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=0o600) as file:
        file.write(msgspec.json.format(json_bytes(manifest), indent=2))


def _node_part(folder: Path, began: float, outcome: "Outcome", before: LauncherPart) -> Manifest:
    """Return two fields of the manifest: `launches`, with this node's launch, and `cause`, the earliest error so far.

    `folder` is the run's folder, `began` the Unix time at which the launch began, and `outcome` how it ended. `before`
    has the present values of these fields.
    """
    first = outcome.first_rank
    if first is None and outcome.logs:
        first = first_rank_here(folder / "dumps", outcome.logs)
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
