"""The server that forks readers for a process with threads."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from analyzers import cached_columns, reader_server, store
from analyzers.child import DONE, Task, explain
from analyzers.errors import InputError, LimitExceeded
from analyzers.reader_server import run_by_server, running_server

READER = "analyzers.memory.digest"
SNAPSHOT = (
    Path(__file__).parents[1] / "fixtures/leak_2ranks/memory_snapshot/iteration_10/rank0_memory_snapshot.pickle.gz"
)
"""A snapshot with many columns, so that reading it takes some time."""


@pytest.fixture
def task(tmp_path):
    def make(path=SNAPSHOT, memory=1 << 30, name="out"):
        (tmp_path / name).mkdir()
        return Task(READER, tmp_path / name, [path], memory, 20)

    return make


@pytest.fixture
def slow_file(tmp_path):
    """Fixture: a pickle whose keys all have the same hash, so that reading it takes many seconds."""
    step = (1 << 61) - 1
    body = b"".join(pickle.dumps(i * step, protocol=2)[2:-1] + b"K\x00" for i in range(1, 200_000))
    path = tmp_path / "slow.pickle"
    path.write_bytes(b"\x80\x02}(" + body + b"u.")
    return path


def children(pid):
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(number) for number in listing.read_text().split()] if listing.exists() else []


def test_threads_share_one_server_and_read_at_the_same_time(task):
    tasks = [task(name=str(number)) for number in range(8)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        assert [ended.status for ended in pool.map(run_by_server, tasks)] == [DONE] * 8
    names = [sorted(path.name for path in task.target.iterdir()) for task in tasks]
    assert names == [names[0]] * 8
    assert len(cached_columns.Columns(tasks[0].target, lambda: pytest.fail("read again"))) > 30
    assert len(reader_server.STARTED) == 1


def test_the_columns_are_those_of_a_new_interpreter(task, tmp_path):
    from analyzers.child import run_in_new_interpreter

    one, other = task(name="one"), task(name="other")
    run_by_server(one)
    run_in_new_interpreter(other)
    for path in one.target.iterdir():
        assert path.read_bytes() == (other.target / path.name).read_bytes(), path.name


def test_a_name_that_is_no_text(task, tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\n.pickle.gz")
    path.write_bytes(SNAPSHOT.read_bytes())
    assert run_by_server(task(path)).status == DONE


def test_what_is_wrong_with_the_file_is_reported(task, tmp_path):
    path = tmp_path / "a.pickle"
    path.write_bytes(b"\x80\x04nonsense")
    made = task(path)
    assert isinstance(explain(run_by_server(made), made), InputError)


def test_the_limit_of_memory_holds(task):
    made = task(memory=1 << 20)
    assert isinstance(explain(run_by_server(made), made), LimitExceeded)


def test_a_killed_server_is_started_again(task):
    assert run_by_server(task(name="before")).status == DONE
    killed = running_server().process
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert run_by_server(task(name="after")).status == DONE
    assert running_server().process.pid != killed.pid


def test_a_task_whose_servers_are_killed_again_and_again_counts_as_killed(task, monkeypatch):
    def no_server(server, _task):
        server.process.kill()
        server.process.wait()
        raise BrokenPipeError

    monkeypatch.setattr(reader_server.ReaderServer, "run", no_server)
    assert isinstance(explain(run_by_server(made := task()), made), LimitExceeded)
    monkeypatch.undo()
    assert run_by_server(task(name="next")).status == DONE


def reader_of(server):
    """Wait until a server's only handler has forked, and return the two."""
    for _ in range(2000):
        handlers = children(server)
        if handlers and (readers := children(handlers[0])):
            return handlers[0], readers[0]
        time.sleep(0.01)
    raise AssertionError("nothing reads")


def test_a_killed_reader_is_an_error_and_the_next_file_is_read(task, slow_file):
    made = task(slow_file)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run_by_server, made)
        os.kill(reader_of(running_server().process.pid)[1], signal.SIGKILL)
        assert isinstance(explain(waiting.result(), made), LimitExceeded)
    assert run_by_server(task(name="next")).status == DONE


PROGRAM = """
import sys, threading, time
from pathlib import Path
from analyzers.child import Task
from analyzers.reader_server import run_by_server, running_server
reader, target, path = sys.argv[1:]
task = Task(reader, Path(target), [Path(path)], 1 << 30, 20)
print(running_server().process.pid, flush=True)
threading.Thread(target=run_by_server, args=[task]).start()
time.sleep(600)
"""


def test_nothing_outlives_a_killed_client(tmp_path, slow_file):
    command = [sys.executable, "-c", PROGRAM, READER, tmp_path, slow_file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        server = int(client.stdout.readline())
        left = [server, *reader_of(server)]
        client.kill()
    for _ in range(500):
        left = [pid for pid in left if is_running(pid)]
        if not left:
            break
        time.sleep(0.01)
    assert left == []


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_sets_of_many_files_are_read_by_the_server(monkeypatch, tmp_path):
    """`load_many` uses threads, so the server reads all sets except those of a few small files."""
    paths = [tmp_path / f"rank{number}.pickle.gz" for number in range(store.FEW_FILES + 2)]
    for path in paths:
        path.write_bytes(SNAPSHOT.read_bytes())
    seen = []
    monkeypatch.setattr(reader_server, "run_by_server", lambda task: seen.append(task) or run_by_server(task))
    loaded = store.load_many([[path] for path in paths], READER, store.Options(jobs=2))
    assert {type(one) for one in loaded} == {store.Columns}
    assert len(seen) == len(paths)
