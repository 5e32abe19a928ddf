"""A cache that is damaged, full, read-only, shared or in another folder: each answer stays complete."""

import contextlib
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from analyzers import cache, cached_columns, store, worker_pool
from analyzers.errors import CacheWarning

READER = "analyzers.hangs.reading.reader"
SEQUENCE = [3, 4]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Fixture: the folder of the cache; a failure to write in one test does not affect the next."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "UNUSABLE", set())
    return tmp_path / "cache"


@pytest.fixture
def dump(tmp_path):
    file = tmp_path / "rank_0"
    entries = [{"collective_seq_id": seq} for seq in SEQUENCE]
    file.write_bytes(pickle.dumps({"version": "2.10", "pg_config": {}, "entries": entries}))
    return file


def read_in_forks(monkeypatch):
    """Let files be read in forks of this process, which have its settings, although other tests left threads here."""
    monkeypatch.setattr(worker_pool, "can_fork", lambda: True)


def sequence(dump):
    """Return the values of a dump's columns, reading each column."""
    columns = store.load([dump], READER)
    assert all(len(columns[name].shape) == 1 for name in columns)
    return columns["ops.seq"].tolist()


def flip(path):
    path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))


def make_folder(path):
    path.unlink()
    path.mkdir()


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "a pipe": make_pipe,
    "an endless device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": flip,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": lambda path: path.unlink(),
    "another column": lambda path: np.save(path, np.zeros(7)),
    "objects": lambda path: np.save(path, np.array([{}], object), allow_pickle=True),
    "a folder": make_folder,
}


# "zeros" is what a power cut leaves where the length of a file was written to the disk before its content.
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", ["*.npy", cached_columns.SHORT_COLUMNS, "meta.json"])
def test_a_damaged_entry_is_read_again(dump, folder, damage, what, monkeypatch):
    if what == "*.npy":
        read_in_forks(monkeypatch)
        monkeypatch.setattr(cached_columns, "SMALL", -1)
    assert sequence(dump) == SEQUENCE
    [entry] = cache.entries(folder)
    files = list(entry.folder.glob(what))
    assert files
    for path in files:
        DAMAGE[damage](path)
    assert sequence(dump) == SEQUENCE
    [mended] = cache.entries(folder)
    assert mended.folder == entry.folder
    assert (mended.folder / "meta.json").is_file()


@pytest.mark.parametrize("text", [b"", b"[1]", b"{}", b"00000000\n{}", b'{"__columns__":["nope"]}'])
def test_what_another_version_wrote_is_read_again(dump, folder, text):
    sequence(dump)
    (cache.entries(folder)[0].folder / "meta.json").write_bytes(text)
    assert sequence(dump) == SEQUENCE


def test_a_column_that_is_damaged_after_opening_is_read_again(dump):
    """A power cut of a shared disk, for example, may damage it between two questions."""
    columns = store.load([dump], READER)
    flip(columns.folder / cached_columns.SHORT_COLUMNS)
    assert columns["ops.seq"].tolist() == SEQUENCE
    assert store.load([dump], READER)["ops.seq"].tolist() == SEQUENCE


def test_a_disk_that_loses_what_is_written_is_an_error_and_no_endless_reading(dump):
    """Each reading once started the next one, up to the recursion limit."""
    columns, readings = store.load([dump], READER), []

    def reread():
        readings.append(1)
        columns = store.load([dump], READER)
        flip(columns.folder / cached_columns.SHORT_COLUMNS)
        return cached_columns.Columns(columns.folder, reread)

    flip(columns.folder / cached_columns.SHORT_COLUMNS)
    with pytest.raises(cache.CacheFailure, match="reads back differently"):
        cached_columns.Columns(columns.folder, reread)["ops.seq"]
    assert len(readings) == cached_columns.PUBLISHING_ATTEMPTS


@pytest.mark.parametrize("of_another_user", ["entry", "folder"])
def test_what_another_user_owns_is_not_used(dump, folder, monkeypatch, of_another_user):
    """Another user may have written a whole entry with correct checksums."""
    sequence(dump)
    [entry] = [path for path in folder.iterdir() if path.is_dir()]
    assert cache.is_trusted(entry)
    if os.geteuid() == 0:
        os.chown(entry if of_another_user == "entry" else folder, 65534, 65534)
    else:
        stranger = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: stranger)
    assert cached_columns.open_entry(entry, lambda: pytest.fail("not used")) is None
    with pytest.warns(CacheWarning, match="another user owns"):
        assert sequence(dump) == SEQUENCE
    assert entry.exists()


@pytest.mark.parametrize("place", ["n" * 300, "n" * 200 + "/" + "m" * 60])
def test_a_folder_with_a_name_that_no_disk_takes_is_left(dump, tmp_path, monkeypatch, place):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / place))
    with pytest.warns(CacheWarning) if len(place) == 300 else contextlib.nullcontext():
        assert sequence(dump) == SEQUENCE


def test_a_file_with_the_name_of_an_entry_gives_way(dump, folder):
    sequence(dump)
    [entry] = cache.entries(folder)
    shutil.rmtree(entry.folder)
    entry.folder.write_text("not an entry")
    assert sequence(dump) == SEQUENCE
    assert entry.folder.is_dir()


def test_a_link_to_a_damaged_entry_gives_way_and_leaves_what_it_leads_to(dump, folder, tmp_path):
    sequence(dump)
    [entry] = cache.entries(folder)
    elsewhere = entry.folder.rename(tmp_path / "elsewhere")
    (elsewhere / "meta.json").write_bytes(b"")
    entry.folder.symlink_to(elsewhere)
    assert sequence(dump) == SEQUENCE
    assert not entry.folder.is_symlink()
    assert (elsewhere / cached_columns.SHORT_COLUMNS).is_file()


def test_an_entry_that_is_damaged_while_a_file_is_read_gives_way(dump, folder, monkeypatch):
    """Another process published it in the meantime, and the disk lost a part."""
    published = cached_columns.publish

    def publish(scratch, entry, reread):
        entry.mkdir(exist_ok=True)
        (entry / "meta.json").touch()
        return published(scratch, entry, reread)

    monkeypatch.setattr(cached_columns, "publish", publish)
    assert sequence(dump) == SEQUENCE
    [entry] = cache.entries(folder)
    assert (entry.folder / "meta.json").is_file()


class Touch:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_short_column_of_objects_is_refused(tmp_path):
    body = bytes(8)
    (tmp_path / cached_columns.SHORT_COLUMNS).write_bytes(body)
    with pytest.raises(cache.DamagedEntry):
        cached_columns.read_short(
            tmp_path / cached_columns.SHORT_COLUMNS, cached_columns.Short("|O", (1,), 0, 8, zlib.crc32(body))
        )


@pytest.mark.parametrize(
    "column",
    [np.arange(6).reshape(2, 3), np.array(["a", "é"]), np.zeros(0, "U"), np.array(5, ">i2"), np.arange(9)[::-2]],
)
def test_short_columns_come_back_as_they_were(tmp_path, column):
    cached_columns.write_entry(tmp_path, {"first": np.ones(1, np.int8), "x": column}, {})
    again = cached_columns.Columns(tmp_path, lambda: pytest.fail("read again"))["x"]
    assert (again.dtype, again.shape) == (column.dtype, column.shape)
    assert again.tolist() == column.tolist()


def test_a_long_column_of_objects_with_a_right_checksum_runs_no_code(tmp_path):
    np.save(tmp_path / "x.npy", np.array([Touch(tmp_path / "ran")], object), allow_pickle=True)
    body = (tmp_path / "x.npy").read_bytes()
    meta = json.dumps({"__columns__": {"x": [len(body), zlib.crc32(body)]}}).encode()
    (tmp_path / "meta.json").write_bytes(b"%08x\n%s" % (zlib.crc32(meta), meta))
    columns = cached_columns.Columns(tmp_path, lambda: pytest.fail("read again"))
    with pytest.raises(ValueError, match=r"allow_pickle=False|Python objects"):
        columns._map("x")
    assert not (tmp_path / "ran").exists()


def test_processes_that_share_a_cache_do_not_disturb_each_other(dump, folder):
    """At the same time some read and find damaged entries, some clear the cache, and one is killed while it writes."""

    def read():
        for _ in range(30):
            assert sequence(dump) == SEQUENCE

    def clear():
        for _ in range(100):
            cache.clear(folder)

    def damage():
        for _ in range(100):
            with contextlib.suppress(OSError):
                for path in (
                    path for entry in cache.entries(folder) for path in entry.folder.glob(cached_columns.SHORT_COLUMNS)
                ):
                    os.truncate(path, 3)

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work) for work in (read, read, read, clear, damage, read)]
    for process in processes:
        process.start()
    processes[-1].kill()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes[:-1]] == [0] * 5
    assert sequence(dump) == SEQUENCE


def test_a_writer_that_was_killed_leaves_no_entry(dump, folder, monkeypatch):
    """A power cut before the rename, for example: the written files have no entry's name, and are deleted when old."""
    monkeypatch.setattr(cached_columns, "publish", lambda *_: os._exit(9))
    with contextlib.suppress(ChildProcessError):
        process = multiprocessing.get_context("fork").Process(target=sequence, args=(dump,))
        process.start()
        process.join(240)
    monkeypatch.undo()
    monkeypatch.setenv("WORKBENCH_CACHE", str(folder))
    assert cache.entries(folder) == []
    [left] = folder.glob(f"{cache.SCRATCH}*")
    os.utime(left, (1, 1))
    assert sequence(dump) == SEQUENCE
    assert not left.exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_without_a_folder_a_temporary_one_serves(dump, tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / place))
    with pytest.warns(CacheWarning, match="files are read again next time"):
        assert sequence(dump) == SEQUENCE
    # Within the process it is a cache like any other, and there is no second warning.
    assert store.load([dump], READER).folder == store.load([dump], READER).folder
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.fixture
def small_disk(tmp_path):
    """Fixture: a file system of 4 KiB, which is too small for the cache entry of a dump."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_costs_no_part_of_the_answer(dump, small_disk, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(small_disk))
    with pytest.warns(CacheWarning, match="No space left on device"):
        assert sequence(dump) == SEQUENCE
    assert list(small_disk.iterdir()) == []


def test_an_entry_of_a_read_only_disk_is_used(dump, small_disk, folder, monkeypatch):
    subprocess.run(["mount", "-o", "remount,size=10m", small_disk], check=True)
    monkeypatch.setenv("WORKBENCH_CACHE", str(small_disk))
    sequence(dump)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert store.load([dump], READER).folder.parent == small_disk
    other = dump.with_name("rank_1")
    other.write_bytes(dump.read_bytes())
    with pytest.warns(CacheWarning, match="Read-only file system"):
        assert sequence(other) == SEQUENCE


def test_where_nothing_can_be_written_is_an_error(dump, monkeypatch):
    """No file may have a single byte, neither in the cache nor in any temporary folder."""
    read_in_forks(monkeypatch)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.warns(CacheWarning), pytest.raises(cache.CacheFailure) as caught:
            store.load([dump], READER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "WORKBENCH_CACHE" in caught.value.hint


def test_a_temporary_folder_ends_with_the_process(dump):
    code = (
        "import pathlib, sys; from analyzers.store import load; print(load([pathlib.Path(sys.argv[1])], READER).folder)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code.replace("READER", repr(READER)), str(dump)]
    environment = os.environ | {"WORKBENCH_CACHE": "/proc/nowhere", "PYTHONPATH": str(Path(__file__).parents[2])}
    used = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert "torch-workbench-" in used
    assert not Path(used).parent.exists()


def test_a_user_without_a_home_has_a_temporary_cache(dump, monkeypatch):
    for name in ("WORKBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache.cache_folder() is None
    assert sequence(dump) == SEQUENCE


def test_clearing_leaves_what_is_not_ours(dump, folder):
    sequence(dump)
    (folder / "notes.txt").write_text("mine")
    (folder / f"{cache.SCRATCH}now").mkdir()
    old = folder / f"{cache.SCRATCH}old"
    old.mkdir()
    os.utime(old, (1, 1))
    assert len(cache.clear(folder)) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", f"{cache.SCRATCH}now"]


def test_a_limit_holds_from_then_on(dump, folder):
    sequence(dump)
    other = dump.with_name("rank_1")
    other.write_bytes(dump.read_bytes())
    time.sleep(0.01)
    sequence(other)
    assert len(cache.entries(folder)) == 2
    cache.set_limit(folder, 1)
    assert len(cache.entries(folder)) == 1
    sequence(dump)
    assert len(cache.entries(folder)) == 1
    for damaged in ("much", "7".ljust(cached_columns.SMALL + 1)):
        (folder / cache.LIMIT_FILE).write_text(damaged)
        assert cache.limit_bytes(folder) == cache.DEFAULT_LIMIT


def test_what_was_opened_last_stays(dump, folder):
    other = dump.with_name("rank_1")
    other.write_bytes(dump.read_bytes())
    first, second = store.load([dump], READER).folder, store.load([other], READER).folder
    for path, used in ((first, 1), (second, 2)):
        os.utime(path, (used, used))
    sequence(dump)
    cache.prune(folder, 1)
    assert [entry.folder for entry in cache.entries(folder)] == [first]


def test_new_content_of_the_same_size_and_time_is_read(dump):
    """The file was replaced by `cp --preserve`, for example, or by an editor that restores the time."""
    assert sequence(dump) == SEQUENCE
    before, content = dump.stat(), pickle.loads(dump.read_bytes())
    for entry, number in zip(content["entries"], (7, 8), strict=True):
        entry["collective_seq_id"] = number
    dump.write_bytes(pickle.dumps(content))
    os.utime(dump, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (dump.stat().st_size, dump.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert sequence(dump) == [7, 8]


def test_nobody_else_may_look_into_a_new_cache(dump, folder):
    sequence(dump)
    cache.set_limit(folder.with_name("other"), 1 << 30)
    assert [path.stat().st_mode & 0o077 for path in (folder, folder.with_name("other"))] == [0, 0]
