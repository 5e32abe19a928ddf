"""A file is written completely, or the old file is kept."""

import os
import resource
import subprocess
from contextlib import contextmanager

import pytest

from analyzers import files
from analyzers.files import replacing, write_whole

ROOM = 1 << 20


@contextmanager
def full_disk():
    """Fixture: no file can grow beyond 1 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.md"
    path.write_text("old")
    path.chmod(0o640)
    return path


def test_a_full_disk_leaves_the_old_file(report):
    with full_disk(), pytest.raises(OSError, match="large"):
        write_whole(report, "x" * (2 * ROOM))
    assert report.read_text() == "old"
    assert list(report.parent.iterdir()) == [report]


def test_so_does_an_error_on_the_way(report):
    def half() -> None:
        with replacing(report) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert report.read_text() == "old"
    assert list(report.parent.iterdir()) == [report]


def test_permissions_stay_and_a_new_file_obeys_the_umask(report):
    write_whole(report, "new")
    assert (report.read_text(), report.stat().st_mode & 0o777) == ("new", 0o640)
    before = os.umask(0o027)
    try:
        write_whole(report.with_name("b.md"), "new")
    finally:
        os.umask(before)
    assert report.with_name("b.md").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(report):
    link = report.with_name("latest.md")
    link.symlink_to(report)
    write_whole(link, "new")
    assert link.is_symlink()
    assert report.read_text() == "new"


def test_a_pipe_is_written_to(tmp_path):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read:
        write_whole(tmp_path.__class__(f"/dev/fd/{writing}"), "new")
        os.close(writing)
        assert read.read() == b"new"


def test_a_pipe_is_waited_for_that_is_read_slowly(tmp_path):
    """A pipe takes only 64 KiB at a time."""
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        ["bash", "-c", 'exec < "$0"; sleep 0.5; wc -c', tmp_path / "pipe"], stdout=subprocess.PIPE
    ) as read:
        write_whole(tmp_path / "pipe", "x" * ROOM)
        assert int(read.communicate(timeout=60)[0]) == ROOM


def test_a_name_of_the_longest_length_can_be_written(tmp_path):
    write_whole(tmp_path / ("n" * 255), "new")
    assert (tmp_path / ("n" * 255)).read_text() == "new"


def test_text_is_utf8_whatever_it_holds(report):
    write_whole(report, "✗ 😀 \udcff")
    assert report.read_bytes().decode() == "✗ 😀 \\udcff"


def test_a_pipe_that_nobody_reads_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "READER_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        write_whole(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_in_place_of_the_draft_is_not_followed(report, monkeypatch):
    """The draft's name cannot be guessed; a file that is there nevertheless belongs to somebody else."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    draft, other = report.with_name(".writing-guessed"), report.with_name("other.txt")
    other.write_text("of somebody else")
    draft.symlink_to(other)
    with pytest.raises(FileExistsError):
        write_whole(report, "new")
    assert (report.read_text(), other.read_text()) == ("old", "of somebody else")
    assert draft.is_symlink()


def test_the_text_is_on_the_disk_before_it_takes_the_name(report, monkeypatch):
    """Otherwise the name could lead to an empty file after a power cut."""
    flushed, flush = [], os.fsync

    def watched(number):
        flushed.append((os.fstat(number).st_size, report.read_text()))
        flush(number)

    monkeypatch.setattr("os.fsync", watched)
    write_whole(report, "new text")
    assert flushed[0] == (len("new text"), "old")
    assert len(flushed) == 2
