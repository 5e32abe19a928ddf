"""Reading that takes long is reported on stderr: on a terminal in one line, elsewhere in a few lines."""

import os
import pty
import signal
import time

import pytest

from analyzers.run import discover
from analyzers.store import Options
from workbench import progress
from workbench.progress import shown_progress

pytestmark = pytest.mark.timeout(600, method="thread")  # the other method needs the same timer


@pytest.fixture
def run(oom):
    return oom


def wait(seconds):
    """Work for `seconds` seconds, whatever signals arrive."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def read(master):
    """Return the next output on a terminal; empty after its last writer has closed it."""
    try:
        return os.read(master, 1 << 16).decode()
    except OSError:
        return ""


def test_a_quick_read_says_nothing(run, capsys):
    with shown_progress(Options(), run):
        pass
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_without_a_terminal_notes_become_rarer(run, capsys, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_NOTE_S", 0.1)
    with shown_progress(Options(), run):
        wait(1.2)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 5
    assert all(line.startswith(f"reading {len(run.artefacts)} files, ") for line in lines)


def test_on_a_terminal_one_line_comes_and_goes(run, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_S", 0.05)
    monkeypatch.setattr(progress, "EVERY_S", 0.05)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with shown_progress(Options(), run):
            wait(0.5)
        monkeypatch.undo()
    shown = "".join(iter(lambda: read(master), ""))
    os.close(master)
    assert "\n" not in shown
    assert shown.count("\r\x1b[Kreading ") >= 2
    assert shown.endswith("\r\x1b[K")


def test_a_file_is_still_read_in_a_fork(run, monkeypatch, capsys):
    """The timer needs no thread, so it does not prevent a fork, nor disturb the wait for the child."""
    from analyzers import child, worker_pool
    from analyzers.rooms import ask

    monkeypatch.setattr(progress, "FIRST_NOTE_S", 0.01)
    monkeypatch.setattr(child.threading, "active_count", lambda: 1)
    monkeypatch.setattr(worker_pool, "run_in_new_interpreter", None)
    with shown_progress(Options(), run):
        report = ask("memory", discover(run.root), Options(jobs=1, cache=False))
    assert report.verdict.kind == "oom"
    assert "reading" in capsys.readouterr().err


@pytest.fixture
def watched():
    """The progress of an answer that has taken a while."""
    reading = progress.WatchedReading("reading 200 files, 1.0 MiB")
    reading._began -= progress.FIRST_S + 1
    reading.want(200)
    return reading


def test_the_line_counts_many_files(watched):
    watched.add(40, cached=True)
    watched.add(24, cached=False)
    assert watched.describe() == "reading 200 files, 1.0 MiB: 64 of 200 (40 from the cache)"


def test_what_the_first_files_say_is_printed_when_it_changes(watched, capsys):
    for files, sentence in ((32, "rank 3 leaks"), (64, "rank 3 leaks"), (128, "rank 3 and 70 leak")):
        watched.answer(files, sentence)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "so far, 32 of 200 files: rank 3 leaks",
        "so far, 128 of 200 files: rank 3 and 70 leak",
    ]
    assert printed.out == ""


def interrupt(options, run, read):
    """Read some of 200 files until Ctrl-C is pressed."""
    with shown_progress(options, run) as watched:
        watched.progress.want(200)
        watched.progress.add(read, cached=False)
        raise KeyboardInterrupt


def test_an_interrupted_run_says_what_it_keeps_and_the_next_one_what_it_found(run, capsys):
    with pytest.raises(KeyboardInterrupt):
        interrupt(Options(), run, 150)
    assert capsys.readouterr().err == "150 of 200 files are in the cache: the same command goes on from there\n"
    with shown_progress(Options(), run) as options:
        options.progress.want(200)
        options.progress.add(150, cached=True)
        options.progress.add(50, cached=False)
    assert capsys.readouterr().err == "read 50 files; 150 were in the cache\n"


def test_a_run_without_a_cache_promises_nothing(run, capsys):
    with pytest.raises(KeyboardInterrupt):
        interrupt(Options(cache=False), run, 150)
    assert capsys.readouterr().err == ""
