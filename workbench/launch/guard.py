"""The guard: a process that ends the job's processes if the launcher is killed, and records this in `run.json`.

    python -P -m workbench.launch.guard FOLDER JOB LAUNCHER_PID < pipe

The launcher has the other end of the pipe, and writes "done" to it at a normal end. If the pipe closes without "done",
the launcher was killed.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from workbench.launch.processes import MARK, end_processes
from workbench.launch.run_manifest import record_lost_launcher
from workbench.python_path import command, environment

DONE = b"done"


@contextlib.contextmanager
def guarded_job(folder: Path, job: str) -> Iterator[None]:
    """Run a guard process inside this context; on a system without Linux's /proc there is no guard.

    `folder` is the run's folder. `job` is the id of the job; all its processes inherit the id in an environment
    variable.
    """
    if not Path("/proc/self/environ").exists():
        yield
        return
    guard = subprocess.Popen(
        command("workbench.launch.guard", str(folder.resolve()), job, str(os.getpid())),
        # With the mark, the guard would count as a process of the job and be ended with it.
        env={name: value for name, value in environment().items() if name != MARK},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C, or a signal to our group, must not end it
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            guard.communicate(DONE, timeout=5)


def main() -> None:
    """Wait until the launcher ends; if it was killed, end the job's processes and record this in run.json."""
    folder, job, launcher = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if sys.stdin.buffer.read() == DONE:
        return
    began = time.time()
    ended = end_processes(job)
    record_lost_launcher(folder, launcher, ended, began)


if __name__ == "__main__":
    main()
