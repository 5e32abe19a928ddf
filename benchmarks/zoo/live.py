"""Test `workbench hang --pid`, which reads the stacks of a hanging job without recorders.

torchrun itself starts the ranks, because they are found by the environment variables of their start.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.zoo.answers import Answer, lines_in
from benchmarks.zoo.cases import Case

TIMEOUT = re.compile(r"seconds=\d+")
LONGEST_START_S, QUIET_S, QUIET_CPU_S, ASKING_S = 90.0, 5.0, 0.3, 180.0
START_CPU_S, QUIET_TIMES = 6.0, 2
"""A job can be quiet only after this many processor seconds, as importing torch takes more on each rank.

It must be quiet `QUIET_TIMES` times in a row, as a busy machine may pause all its processes for a while.
"""
TICKS = os.sysconf("SC_CLK_TCK")


def answer_by_stacks(case: Case, script: Path) -> Answer:
    """Start a case under torchrun with very long timeouts, and return the workbench's answer once the job hangs."""
    script.parent.mkdir(parents=True)
    script.write_text(TIMEOUT.sub("seconds=900", case.text(recorded=False)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OUTPUTS": str(script.parent)}
    with script.with_name("torchrun.log").open("wb") as log:
        job = subprocess.Popen(
            [*command, str(script)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until_quiet(job.pid)
        return ask(job.pid, script.name)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def wait_until_quiet(session: int) -> None:
    """Wait until the processes of a job use hardly any processor time, but not for ever, because one may be in a
    loop.
    """
    deadline, before, quiet = time.monotonic() + LONGEST_START_S, -1.0, 0
    while time.monotonic() < deadline and quiet < QUIET_TIMES:
        time.sleep(QUIET_S)
        now = cpu_seconds(session)
        quiet = quiet + 1 if before > START_CPU_S and now - before < QUIET_CPU_S else 0
        before = now


def cpu_seconds(session: int) -> float:
    """Return the total processor time of all processes in a session."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(") ")[2].split()
            if int(fields[3]) == session:
                total += int(fields[11]) + int(fields[12])
    return total / TICKS


def ask(pid: int, script: str) -> Answer:
    """Return the answer of `workbench hang --pid`."""
    command = [sys.executable, "-m", "workbench", "hang", "--pid", str(pid), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=ASKING_S)
    if not done.stdout:
        return Answer("unknown", "unknown", [], done.stderr.strip()[-300:], [])
    report: dict[str, Any] = json.loads(done.stdout)
    said = report["verdict"]
    texts = [said["sentence"], json.dumps(report["findings"])]
    return Answer(said["status"], said["class"], said["ranks"], said["sentence"], lines_in(texts, script))
