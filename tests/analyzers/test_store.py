"""Test the cache and the child process with limits: with a reader of real dumps, and with hostile readers."""

import os
import pickle
import threading

import numpy as np
import pytest

from analyzers import child, store, worker_pool
from analyzers.cache import SCRATCH, prune
from analyzers.cached_columns import SMALL
from analyzers.child import Task
from analyzers.errors import HostileInput, InputError, LimitExceeded
from analyzers.store import Progress

READER = "analyzers.hangs.reading.reader"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def dump(tmp_path):
    file = tmp_path / "rank_0"
    file.write_bytes(pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [{"collective_seq_id": 3}]}))
    return file


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Fixture: a function that writes a reader module with the given body, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(body, name):
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / f"{name}.py").write_text(f"import numpy as np\nVERSION = 1\ndef read(paths):\n{lines}")
        return name

    return make


def test_columns_are_mapped_and_cached(dump, cache):
    first = store.load([dump], READER)
    assert first["ops.seq"].tolist() == [3]
    assert not first["ops.seq"].flags.writeable
    assert "ops.seq" in list(first)
    assert len(first) == len(list(first))
    with pytest.raises(KeyError):
        first["absent"]
    assert store.load([dump], READER).folder == first.folder
    assert [p for p in cache.iterdir() if p.name.startswith(SCRATCH)] == []


def test_only_long_columns_are_mapped(dump, reader):
    """Each mapped column keeps a file open."""
    lengths = f"long=np.zeros({SMALL // 8 + 1}), short=np.zeros(9)"
    columns = store.load([dump], reader(f"return dict({lengths}), {{}}", "lengths"))
    assert isinstance(columns["long"], np.memmap)
    assert not isinstance(columns["short"], np.memmap)


def test_a_changed_file_is_read_again(dump):
    first = store.load([dump], READER)
    dump.write_bytes(pickle.dumps({"pg_config": {}, "entries": []}))
    second = store.load([dump], READER)
    assert second.folder != first.folder
    assert len(second["ops.seq"]) == 0


def test_without_a_cache_nothing_stays_on_the_disk(dump, cache):
    columns = store.load([dump], READER, store.Options(cache=False))
    assert columns["ops.seq"].tolist() == [3]
    assert list(cache.iterdir()) == []


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        store.load([tmp_path / "absent"], READER)


BODIES = [
    ("from analyzers.errors import HostileInput\nraise HostileInput('bad', 'no')", HostileInput, "bad"),
    ("return {'x': np.zeros(1 << 40)}, {}", LimitExceeded, "of memory"),
    ("while True: pass", LimitExceeded, "processor time"),
    ("def f(): f()\nf()", HostileInput, "nested too deeply"),
    ("raise OSError('half a file')", InputError, "half a file"),
    ("raise ValueError('surprise')", InputError, "the reader failed: ValueError: surprise"),
]


@pytest.fixture(params=["forked", "started"])
def way(request, monkeypatch):
    """Fixture: both methods of starting a reader process, regardless of other threads in the test process."""
    monkeypatch.setattr(threading, "active_count", lambda: 1 if request.param == "forked" else 2)
    return request.param


@pytest.mark.parametrize(("body", "error", "words"), BODIES, ids=[words for *_, words in BODIES])
def test_how_a_child_may_end(reader, dump, cache, monkeypatch, way, body, error, words):
    name = reader(body, f"reader_{abs(hash(words))}_{way}")
    monkeypatch.setattr(worker_pool, "Task", lambda *given, seconds: Task(*given, seconds=min(seconds, 2)))
    with pytest.raises(error, match=words) as caught:
        store.load([dump], name)
    assert type(caught.value) is error
    assert caught.value.hint
    assert list(cache.iterdir()) == []


def test_what_a_reader_prints_is_lost_and_its_columns_arrive(reader, dump, way, capfd):
    name = reader("print('noise')\nimport sys, os\nsys.stderr.write('noise')\nos.write(1, b'noise')\n"
                  "return {'pid': np.array([os.getpid()])}, {}", f"loud_{way}")  # fmt: skip
    assert store.load([dump], name)["pid"].tolist() != [os.getpid()]
    assert capfd.readouterr() == ("", "")


def test_what_is_typed_is_not_for_a_reader(reader, dump, way):
    """The terminal app reads the keys."""
    reading, writing = os.pipe()
    os.write(writing, b"typed")
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        name = reader("import os\nreturn {'typed': np.frombuffer(os.read(0, 5), np.uint8)}, {}", f"typed_{way}")
        assert len(store.load([dump], name)["typed"]) == 0
    finally:
        os.dup2(before, 0)
        os.close(reading)
        os.close(before)


@pytest.mark.parametrize("search", ["", ":", ":/nowhere:"])
def test_modules_in_the_working_folder_are_not_imported(dump, tmp_path, monkeypatch, search):
    """An empty part of PYTHONPATH is the working folder, which may be one that somebody sent."""
    (tmp_path / "numpy.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", search)
    (tmp_path / "out").mkdir()
    ended = child.run_in_new_interpreter(Task(READER, tmp_path / "out", [dump], memory=4 << 30, seconds=60))
    assert ended.status == child.DONE, ended.message
    assert not (tmp_path / "ran").exists()


def test_a_forked_child_is_ended_with_the_reading(reader, dump, cache, monkeypatch):
    """Ctrl-C, for example, ends the reading."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    forks, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.load([dump], reader("while True: pass", "endless"))
    with pytest.raises(ProcessLookupError):
        os.kill(forks[0], 0)
    assert list(cache.iterdir()) == []


def test_one_bad_file_does_not_stop_the_rest(dump, tmp_path):
    loaded = store.load_many([[dump], [tmp_path / "absent"]], READER, store.Options(jobs=2))
    assert loaded[0]["ops.seq"].tolist() == [3]
    assert isinstance(loaded[1], InputError)

    # A fork's limit counts what it inherits.


def test_children_share_the_memory_and_what_needs_more_is_read_alone(reader, dump, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pool, "run_forked", child.run_in_new_interpreter)
    paths = [tmp_path / f"rank_{number}" for number in range(store.FEW_FILES + 1)]
    for path in paths:
        path.write_bytes(dump.read_bytes())
    name = reader(
        "import resource\n"
        "limit, _ = resource.getrlimit(resource.RLIMIT_AS)\n"
        "if paths[0].name == 'rank_2': np.zeros(1 << 29, np.uint8)\n"
        "return {'limit': np.array([limit])}, {}",
        "sharing",
    )
    whole = 1 << 31
    limits = [
        one["limit"][0] for one in store.load_many([[p] for p in paths], name, store.Options(jobs=4, max_memory=whole))
    ]
    assert limits == [whole // 4, whole // 4, whole, whole // 4, whole // 4]


def test_a_set_falls_apart_when_one_file_takes_the_child_down(reader, dump, tmp_path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"x")
    name = reader(
        "if any(p.name == 'bad' for p in paths): raise OSError('no')\nreturn {'n': np.arange(len(paths))}, {}", "picky"
    )
    together = list(store.load_set([dump, dump], name))
    assert [numbers for numbers, _ in together] == [[0, 1]]
    apart = list(store.load_set([dump, bad], name))
    assert [numbers for numbers, _ in apart] == [[0], [1]]
    assert isinstance(apart[1][1], InputError)
    assert list(store.load_set([], name)) == []
    among_many = list(store.load_set([*[dump] * 5, bad, *[dump] * 10], name))
    assert [len(numbers) for numbers, _ in among_many] == [4, 1, 1, 2, 8]
    assert [numbers for numbers, one in among_many if isinstance(one, InputError)] == [[5]]
    progress = Progress()
    in_parts = list(store.load_set([*[dump] * 5, bad, *[dump] * 10], name, store.Options(progress=progress), parts=3))
    assert [len(numbers) for numbers, _ in in_parts] == [5, 1, 1, 3, 6]
    assert (progress.wanted, progress.done) == (16, 16)


def test_many_at_once_share_an_entry(dump, cache):
    found = []
    threads = [threading.Thread(target=lambda: found.append(store.load([dump], READER))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {columns.folder for columns in found} == {next(cache.iterdir())}
    assert len(found) == 4


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path, cache, dump):
    old = store.load([dump], READER).folder
    other = tmp_path / "rank_1"
    other.write_bytes(dump.read_bytes())
    new = store.load([other], READER).folder
    os.utime(old, (1, 1))
    (cache / f"{SCRATCH}x").mkdir()
    prune(cache, 1)
    assert not old.exists()
    assert new.exists()
    assert (cache / f"{SCRATCH}x").exists()
