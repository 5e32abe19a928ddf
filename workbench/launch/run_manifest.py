"""Complete the `run.json` of a run with what only its launcher knows: how the job ended, and its first error."""

import fcntl
import socket
import sys
import time
from pathlib import Path

import msgspec

from workbench.launch.agent import Outcome
from workbench.launch.cause import Cause, earliest, first_error, first_rank_here

Manifest = dict[str, object]


class LauncherPart(msgspec.Struct):
    """What the launchers of all nodes have written so far: each adds its own ranks, and the earliest error stays."""

    exit_codes: dict[str, int] = {}
    launches: dict[str, object] = {}
    cause: Cause | None = None


def record_outcome(folder: Path, began: float, outcome: Outcome) -> None:
    """Write the end of a launch that began at the Unix time `began` into `run.json`."""
    with (folder / ".settling").open("w") as lock:
        # The launchers of several nodes end at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_outcome(folder / "run.json", began, outcome)


def write_outcome(path: Path, began: float, outcome: Outcome) -> None:
    """Add the outcome to what the trainer and other launchers wrote; the manifest of an earlier run is replaced."""
    manifest = read_manifest(path)
    # Not by `started_ns`: the launcher of another node may have begun, and written, before this one began.
    if not manifest or path.stat().st_mtime < began:
        manifest = {"schema": "workbench.run/1", "started_ns": int(began * 1e9), "argv": sys.argv}
    before = launcher_part(manifest)
    manifest |= {
        "status": outcome.status,
        "ended_ns": manifest.get("ended_ns") or time.time_ns(),
        "exit_codes": before.exit_codes | {str(rank): code for rank, code in sorted(outcome.exit_codes.items())},
    }
    manifest |= node_part(path.parent, began, outcome, before)
    # Readers must never see half of it.
    scratch = path.with_suffix(".json.tmp")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    scratch.rename(path)


def node_part(folder: Path, began: float, outcome: Outcome, before: LauncherPart) -> Manifest:
    """Return the launches with this node's, and the earliest cause of all nodes that have ended."""
    first = outcome.first_rank
    if first is None and outcome.logs:
        first = first_rank_here(folder / "dumps", outcome.logs)
    cause = first_error(outcome.logs or folder / "logs", began, first or 0)
    this_node = {"host": socket.gethostname(), "first_rank": first}
    launches = before.launches | ({outcome.logs.name: this_node} if outcome.logs else {})
    return {"launches": launches, "cause": earliest(filter(None, (cause, before.cause)))}


def launcher_part(manifest: Manifest) -> LauncherPart:
    """Return what other launchers wrote; nothing where it is not what a launcher writes."""
    known = {name: value for name in LauncherPart.__struct_fields__ if (value := manifest.get(name))}
    try:
        return msgspec.convert(known, LauncherPart)
    except msgspec.ValidationError:
        return LauncherPart()


def read_manifest(path: Path) -> Manifest:
    """Return the manifest; empty where there is none, or where it is broken."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return {}
