"""Move the files of an earlier job out of a run's folder, so that they are not mistaken for files of the new job."""

import shutil
import time
from pathlib import Path

from analyzers.steps.live import is_running
from workbench.launch.run_manifest import Manifest, read_manifest

_OURS = ("dumps", "steps", "profile_traces", "memory_snapshot", "health", "nodes", "run.json")
"""The files and folders that the launcher and the recorders write; the user's own files in the folder stay."""
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
    found = [folder / name for name in (*_OURS, *more)]
    found += [path for pattern in _OUR_LOGS for path in (folder / "logs").glob(pattern)]
    found += folder.glob(".collect_*")  # the name of that run at the receiver of its nodes' files
    for path in found:
        if path.exists():
            place = target / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, place)


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
