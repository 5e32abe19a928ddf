"""Many small files: each is read in a process of its own, kills change no answer, and the cache is not searched
for each.
"""

import os
import pickle
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from analyzers import cache, cached_columns, reader_server, store
from analyzers.child import DONE, KILLS, ReaderKilled, Task
from analyzers.errors import HostileInput, InputError
from analyzers.reader_server import running_server

READER = "analyzers.memory.digest"
SNAPSHOT = (
    Path(__file__).parents[1] / "fixtures/leak_2ranks/memory_snapshot/iteration_10/rank0_memory_snapshot.pickle.gz"
)
FILES = 12


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"rank{number}.pickle.gz" for number in range(FILES)]
    for path in paths:
        path.write_bytes(SNAPSHOT.read_bytes())
    return paths


def bytes_of(columns):
    """Return everything that an answer is made from, as bytes."""
    return {name: (str(columns[name].dtype), columns[name].tobytes()) for name in columns}, columns.meta


def family(pid):
    """Return all processes below `pid`."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, children) for each in (child, *family(child))]


class Killer(threading.Thread):
    """Kills the server, a handler or a reader at random moments, until it has done so `times` times."""

    def __init__(self, times, number):
        super().__init__(daemon=True)
        self.dice, self.left, self.killed, self.ended = random.Random(times), times, [], threading.Event()
        self.number = number

    def run(self):
        while self.left and not self.ended.wait(self.dice.uniform(0.01, 0.1)):
            below = family(os.getpid())
            if below:
                os.kill(victim := self.dice.choice(below), self.number)
                self.killed.append(victim)
                self.left -= 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_workers_at_random_moments_changes_no_answer(files, number):
    [expected] = store.load_many([files[:1]], READER)
    running_server()
    killer = Killer(6, number)
    killer.start()
    loaded = store.load_many([[path] for path in files], READER, store.Options(jobs=3, cache=False))
    killer.ended.set()
    killer.join()
    assert killer.killed
    lost = [result for result in loaded if isinstance(result, Exception)]
    assert all(bytes_of(columns) == bytes_of(expected) for columns in loaded if columns not in lost)
    # Each kill of a reader stops one file, and one of the server counts for none.
    assert len(lost) * store.ATTEMPTS <= len(killer.killed)
    assert {type(error) for error in lost} <= {ReaderKilled}


def test_killing_the_server_again_and_again_gives_no_file_up(files, monkeypatch):
    """Each server is killed while it imports the reader, when three files wait for it."""
    [expected] = store.load_many([files[:1]], READER)
    killed = []
    start = reader_server.ReaderServer.__init__

    def killed_soon(server):
        start(server)
        if len(killed) < store.SERVERS - 1:
            killed.append(server)
            threading.Timer(0.05, server.process.kill).start()

    monkeypatch.setattr(reader_server.ReaderServer, "__init__", killed_soon)
    monkeypatch.setattr(reader_server, "STARTED", [])
    loaded = store.load_many([[path] for path in files], READER, store.Options(jobs=3, cache=False))
    for server in reader_server.STARTED:
        server.stop()
    assert len(killed) > store.ATTEMPTS
    assert all(bytes_of(columns) == bytes_of(expected) for columns in loaded)


def test_a_file_whose_readers_are_all_killed_is_lost_alone_with_its_reason(files, monkeypatch):
    """As if the system's out-of-memory killer ended every process that reads this one file."""
    run = reader_server.run_by_server
    seen = []

    def killed_each_time(task):
        if task.paths[0].name == "rank3.pickle.gz":
            seen.append(task.target)
            return reader_server.ChildExit(-signal.SIGKILL, b"")
        return run(task)

    monkeypatch.setattr(reader_server, "run_by_server", killed_each_time)
    loaded = store.load_many([[path] for path in files], READER, store.Options(jobs=2))
    [lost] = [result for result in loaded if isinstance(result, Exception)]
    assert isinstance(lost, ReaderKilled)
    assert "rank3" in lost.message
    assert "SIGKILL" in lost.message
    assert len(set(seen)) == store.ATTEMPTS
    assert -signal.SIGXCPU not in KILLS


class Touch:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def hostile_files(folder):
    """Write files that ask for code, break off, nest too deeply or claim far too much."""
    bodies = {
        "code": pickle.dumps({"segments": [Touch(folder / "ran")]}, protocol=4),
        "cut": pickle.dumps({"segments": []}, protocol=4)[:-4],
        "deep": b"\x80\x04" + b"(" * 2_000_000,
        "long": b"\x80\x04\x8e" + b"\xff" * 8,
    }
    for name, body in bodies.items():
        (folder / f"{name}.pickle").write_bytes(body)
    return [folder / f"{name}.pickle" for name in bodies]


def test_hostile_files_between_the_others_change_no_answer(files, tmp_path):
    """Each file has a fork of a process that has never opened a file, so that nothing stays of the one before."""
    [expected] = store.load_many([files[:1]], READER)
    hostile = hostile_files(tmp_path)
    mixed = [path for pair in zip(files, hostile * 3, strict=True) for path in pair]
    loaded = store.load_many([[path] for path in mixed], READER, store.Options(jobs=2, cache=False))
    assert all(bytes_of(columns) == bytes_of(expected) for columns in loaded[::2])
    assert all(isinstance(error, InputError) for error in loaded[1::2])
    assert isinstance(loaded[1], HostileInput)
    assert not (tmp_path / "ran").exists()


READER_WITH_MEMORY = """
import numpy as np
VERSION, SEEN = 1, []
def read(paths):
    SEEN.append(paths[0].name)
    return {"seen": np.array([len(SEEN)])}, {"seen": SEEN}
"""


def test_a_reader_remembers_nothing_of_the_file_before(files, tmp_path, monkeypatch):
    """The server imports a reader once, and forks for each file; here is a reader that would tell."""
    (tmp_path / "reader_with_memory.py").write_text(READER_WITH_MEMORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(reader_server, "STARTED", [])
    try:
        for path in files:
            target = tmp_path / f"columns of {path.name}"
            target.mkdir()
            ended = reader_server.run_by_server(Task("reader_with_memory", target, [path], 1 << 30, 20))
            assert ended.status == DONE
            meta = cached_columns.Columns(target, lambda: pytest.fail("read again")).meta
            assert meta["seen"] == [path.name]
    finally:
        reader_server.STARTED[0].stop()


def test_the_cache_is_not_searched_for_each_file(files, monkeypatch):
    searched = []
    prune = cache.prune
    monkeypatch.setattr(cache, "GROWN", {})
    monkeypatch.setattr(cache, "prune", lambda *given: searched.append(given) or prune(*given))
    store.load_many([[path] for path in files], READER, store.Options(jobs=2))
    assert 1 <= len(searched) <= 2  # the first entries of two threads may be written at the same moment


def test_the_time_of_readers_is_counted(files):
    """The processor time of the readers is that of the server, once it has ended."""
    import resource

    def children_s():
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    def cost_of(paths):
        reader_server.STARTED.clear()
        before = children_s()
        if paths:
            store.load_many([[path] for path in paths], READER, store.Options(jobs=2, cache=False))
        else:
            running_server()
            time.sleep(1)
        reader_server.STARTED[0].stop()
        return children_s() - before

    idle = cost_of([])
    assert cost_of(files) > idle + 0.01 * FILES
