"""Artefacts read by workers of an executor: columns and errors are those of a local run."""

import importlib
import multiprocessing
import os
import signal
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from analyzers import store, worker_pool
from analyzers.errors import WorkbenchError
from analyzers.worker_pool import Order, Refusal, WorkerPool, identities, read_order

READER = "analyzers.memory.digest"
FIXTURES = Path(__file__).parents[1] / "fixtures"
SNAPSHOT = FIXTURES / "leak_2ranks/memory_snapshot/iteration_10/rank0_memory_snapshot.pickle.gz"
DUMP = FIXTURES / "stuck_2ranks/dumps/rank_0"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def artefacts(tmp_path):
    """Fixture: three snapshots, and one that is damaged."""
    paths = [tmp_path / f"rank{number}_memory_snapshot.pickle.gz" for number in range(4)]
    for path in paths:
        path.write_bytes(SNAPSHOT.read_bytes())
    paths[2].write_bytes(SNAPSHOT.read_bytes()[:5000])
    return [[path] for path in paths]


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    """Fixture: one process that works in a folder of its own."""
    folder = str(tmp_path_factory.mktemp("worker"))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=os.chdir, initargs=(folder,)) as pool:
        yield pool


def pool_of(executor, reports=None):
    return WorkerPool(executor, 2, 1, lambda: True, (reports if reports is not None else []).append)


def contents(loaded):
    """Return everything that an answer is made from, as bytes, or the error."""
    if isinstance(loaded, WorkbenchError):
        return type(loaded), loaded.message, loaded.hint
    return {name: (str(loaded[name].dtype), loaded[name].tobytes()) for name in loaded}, loaded.meta


def load_all(artefacts, **options):
    return [contents(loaded) for loaded in store.load_many(artefacts, READER, store.Options(cache=False, **options))]


def test_columns_and_errors_are_those_of_a_local_run(artefacts, executor):
    reports = []
    assert load_all(artefacts, workers=pool_of(executor, reports)) == load_all(artefacts)
    assert reports == [Refusal.UNREADABLE]


def test_what_workers_have_read_is_in_the_cache(artefacts, executor):
    store.load_many(artefacts, READER, store.Options(workers=pool_of(executor)))
    entries = [entry for entry in (Path(os.environ["WORKBENCH_CACHE"])).iterdir() if len(entry.name) == 32]
    assert len(entries) == 3


def test_a_worker_that_does_not_see_the_files_gets_their_contents(artefacts, executor, tmp_path, monkeypatch):
    """Through this path each process sees its own working folder, as machines see their own disks."""
    monkeypatch.chdir(tmp_path)
    reports, paths = [], [Path("/proc/self/cwd") / artefacts[0][0].name]
    for folder in ("near", "far"):
        (tmp_path / folder).mkdir()
    store.read_in_child(artefacts[0], READER, tmp_path / "near", None)
    assert executor.submit(read_order, Order(tuple(paths), identities(paths), READER, version(), None)).result() is (
        Refusal.OTHER_FILES
    )
    pool_of(executor, reports).read(paths, READER, tmp_path / "far", None)
    assert not reports
    assert {file.name: file.read_bytes() for file in (tmp_path / "far").iterdir()} == {
        file.name: file.read_bytes() for file in (tmp_path / "near").iterdir()
    }


@pytest.fixture
def dumps(tmp_path):
    """Fixture: the dumps of six ranks, one of which is damaged."""
    paths = [tmp_path / f"rank_{number}" for number in range(6)]
    for path in paths:
        path.write_bytes(DUMP.read_bytes())
    paths[4].write_bytes(DUMP.read_bytes()[:500])
    return paths


def load_dumps(dumps, parts, **options):
    loaded = store.load_set(dumps, "analyzers.hangs.reading.reader", store.Options(cache=False, **options), parts)
    return [(numbers, contents(columns)) for numbers, columns in loaded]


def test_parts_of_a_set_are_read_by_workers(dumps, executor, monkeypatch):
    near = load_dumps(dumps, 3)
    assert [numbers for numbers, _ in near] == [[0, 1], [2, 3], [4, 5]]
    monkeypatch.setattr(worker_pool, "read_in_child", lambda *_: pytest.fail("read here"))
    assert load_dumps(dumps, 3, workers=pool_of(executor)) == near


def test_a_set_of_one_part_is_read_here(dumps):
    assert load_dumps(dumps, 1, workers=pool_of(None)) == load_dumps(dumps, 1)


@pytest.mark.parametrize(
    ("reader", "source"),
    [
        ("analyzers.hangs.reading.reader", DUMP),
        ("analyzers.steps.reading.reader", FIXTURES / "stuck_2ranks/steps/rank_0.jsonl"),
        ("analyzers.logs.reading.reader", FIXTURES / "oom_2ranks/dumps/exit_1.json"),
    ],
)
def test_what_is_wrong_with_a_copy_is_told_as_of_the_file(tmp_path, reader, source):
    paths = [tmp_path / "near" / str(number) / source.name for number in range(3)]
    whole = source.read_bytes()
    contents = (whole, whole[: len(whole) // 2], b"\x1f\x8b" + whole)
    for path, content in zip(paths, contents, strict=True):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    near, module = tmp_path / "entry", importlib.import_module(reader)
    near.mkdir()
    store.read_in_child(paths, reader, near, None)
    copied = read_order(Order(tuple(paths), identities(paths), reader, module.VERSION, None, contents))
    assert dict(copied) == {file.name: file.read_bytes() for file in near.iterdir()}


def version():
    from analyzers.memory import digest

    return digest.VERSION


def test_another_file_of_the_same_name_is_not_read(artefacts):
    path = artefacts[0][0]
    order = Order((path,), identities([path]), READER, version(), None)
    path.write_bytes(path.read_bytes() + b"\0")
    assert read_order(order) is Refusal.OTHER_FILES


def test_another_version_of_the_reader_is_refused(artefacts):
    order = Order(tuple(artefacts[0]), identities(artefacts[0]), READER, version() + 1, None)
    assert read_order(order) is Refusal.OTHER_VERSION


def test_without_any_worker_left_the_files_are_read_here(artefacts):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        os.kill(executor.submit(os.getpid).result(), signal.SIGKILL)
        reports = []
        assert load_all(artefacts, workers=pool_of(executor, reports)) == load_all(artefacts)
    assert [type(report).__name__ for report in reports] == ["BrokenProcessPool"]


class Workerless(Executor):
    """An executor like that of a cluster which has lost all its workers: orders wait."""

    def submit(self, call, /, *arguments, **options):
        return Future()


def test_a_cluster_without_workers_is_waited_for_once(artefacts, monkeypatch):
    """Sixty seconds for each of 512 files would be a day's work."""
    monkeypatch.setattr(worker_pool, "GIVEN_UP_S", 2)
    reports = []
    workers = WorkerPool(Workerless(), 1, 1, lambda: False, reports.append)
    start = time.monotonic()
    assert load_all(artefacts * 3, workers=workers) == load_all(artefacts * 3)
    assert time.monotonic() - start < 2 + 12 * 1.5
    assert [type(report) for report in reports] == [TimeoutError]
