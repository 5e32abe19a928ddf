"""The collector of a node ends when its run folder is deleted, or when its ranks never write anything."""

import os
import shutil
import subprocess
import sys
import time

from workbench.recorders.hang.rank_process import is_running

PATIENCE_S = 60
COMMAND = (sys.executable, "-P", "-m", "workbench.recorders.hang.collector")


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_ends_when_its_run_folder_is_deleted(tmp_path):
    run = tmp_path / "run"
    (run / "dumps").mkdir(parents=True)
    collector = subprocess.Popen([*COMMAND, run])
    try:
        time.sleep(2)
        assert collector.poll() is None
        shutil.rmtree(run)
        assert collector.wait(PATIENCE_S) == 0
        assert not run.exists()
    finally:
        collector.kill()


def test_it_ends_with_the_rank_that_started_it_and_wrote_nothing(tmp_path):
    (tmp_path / "dumps").mkdir()
    start = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(3)"
    rank = subprocess.Popen(
        [sys.executable, "-c", start, *COMMAND, tmp_path], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with rank:
        collector = int(rank.stdout.readline())
        assert is_running(collector)
    try:
        wait_until(lambda: not is_running(collector))
    finally:
        if is_running(collector):
            os.kill(collector, 9)
