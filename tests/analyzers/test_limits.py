"""Limits on computations in this process: small files that are cheap to read but expensive to compare."""

import itertools
import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analyzers import limits
from analyzers.errors import LimitExceeded
from analyzers.files import read_whole
from analyzers.limits import OutOfTime, limited, limited_time
from analyzers.rooms import JOINED, ask, room_for
from analyzers.run import discover
from analyzers.store import Options

LITTLE = 256 << 20
RANKS = 12_000


def write_diagonal(folder):
    """Write a log of 0.5 MB in which each step belongs to another rank, so that its table has 144 million cells."""
    rows = ({"step": n, "rank": n, "loss": 1.0, "step_time": 0.1} for n in range(RANKS))
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_a_short_file_takes_little_memory_although_a_long_one_would_be_allowed(tmp_path):
    file = tmp_path / "meta.json"
    file.write_text("{}")
    with limited("the file", [file], max_memory=LITTLE):
        assert read_whole(file, most=4 * LITTLE) == b"{}"


def work_without_end():
    for _ in itertools.count():
        pass


def test_a_small_log_of_many_ranks_and_steps_is_refused(tmp_path):
    write_diagonal(tmp_path)
    run = discover(tmp_path)
    with pytest.raises(LimitExceeded, match=r"analysis needs more than 256.0 MiB of memory") as caught:
        ask(room_for(run), run, Options(cache=False, max_memory=LITTLE))
    assert "--max-memory" in caught.value.hint


def test_of_a_whole_run_the_rest_is_answered(tmp_path):
    write_diagonal(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stderr.log").write_text(
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 1, in f\n[rank3]: ValueError: no\n'
    )
    report = ask(JOINED, discover(tmp_path), Options(cache=False, max_memory=LITTLE))
    assert any("analysis needs more than" in finding.why for finding in report.findings)
    assert "ValueError" in report.json().decode()


@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "thread"])
def test_work_without_end_is_stopped(in_thread):
    caught = []

    def work():
        try:
            with limited_time(0.2):
                work_without_end()
        except OutOfTime as error:
            caught.append(error)

    if in_thread:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    assert len(caught) == 1


def test_the_error_names_the_time(tmp_path):
    with (
        pytest.raises(LimitExceeded, match=r"analysis takes more than .* of processor time"),
        limited("it", [], share=0.005),
    ):
        work_without_end()


def test_what_an_inner_block_uses_does_not_count_outside():
    with limited_time(60):
        with pytest.raises(OutOfTime), limited_time(0.1):
            work_without_end()
        sum(range(1000))


def test_limits_end_with_the_block():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limited("outer", []):
        inside = resource.getrlimit(resource.RLIMIT_DATA)
        with limited("inner", [], max_memory=LITTLE):
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] >= inside[0]
    assert inside != before
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def grow_without_end():
    with limited("it", [], LITTLE):
        assert [bytearray(b"x" * (4 << 20)) for _ in range(400)]


def test_where_the_system_enforces_no_limit_a_thread_watches(monkeypatch):
    """macOS enforces no limit; the same code runs there."""
    monkeypatch.setattr(limits, "ENFORCED", False)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(LimitExceeded, match=r"needs more than 256\.0 MiB of memory"):
        grow_without_end()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with limited("it", [], LITTLE):
        work = sum(range(100_000))
    assert work


def test_a_child_that_is_only_watched_ends_for_lack_of_memory():
    """This happens on macOS; the parent takes the message for a refused allocation."""
    program = """
from analyzers.child import _end_for_lack_of_memory, watch_memory
watch_memory(64 << 20, _end_for_lack_of_memory)
kept = [bytearray(b"x" * (4 << 20)) for _ in range(1000)]
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (1, b"MemoryError")


def test_a_stopped_child_ends_with_its_parent():
    program = """
import os, signal, time
from analyzers.child import end_with_parent
child = os.fork()
if not child:
    end_with_parent()
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitid(os.P_PID, child, os.WSTOPPED)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60).stdout
    state = Path(f"/proc/{int(said)}/stat")
    deadline = time.monotonic() + 20
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.05)
