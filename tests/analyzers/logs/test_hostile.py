"""Files that are not logs, or are made to do harm: reading them is bounded, and showing them has no side effect."""

import gzip
import os
import random
import time

import pytest

from analyzers import logs, store
from analyzers.errors import InputError
from analyzers.logs.reading import scanner
from analyzers.run import discover
from workbench.command_options.options import Format
from workbench.present import render

ERROR = b"[rank1]: ValueError: no tokens\n"


def test_random_bytes_show_nothing(tmp_path):
    log = tmp_path / "job.log"
    log.write_bytes(random.Random(0).randbytes(1 << 20))
    try:
        report = logs.analyze(log)
    except InputError:
        return
    assert report.verdict.status == "unknown"


@pytest.mark.parametrize("filler", [b"x", b"\0", b"\r", b"\x1b[31m", b"\xff\xfe", b"Error ", b'File "'])
def test_one_long_line_before_an_error_is_read_in_little_memory(tmp_path, filler):
    log = tmp_path / "job.log"
    log.write_bytes(b"start\n" + filler * ((1 << 23) // len(filler)) + b"\n" + ERROR)
    report = logs.analyze(log, store.Options(max_memory=200 << 20, cache=False))
    assert (report.verdict.kind, report.verdict.ranks) == ("crashed", [1])
    assert "no tokens" in report.data.events[-1].message
    assert report.data.events[-1].line == 3
    assert all(len(event.excerpt) < 10_000 for event in report.data.events)


def test_a_gzipped_bomb_takes_no_memory(tmp_path):
    log = tmp_path / "job.log.gz"
    with gzip.open(log, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"\0" * (1 << 20))
        file.write(b"\n" + ERROR)
    assert logs.analyze(log, store.Options(max_memory=200 << 20)).verdict.ranks == [1]


def test_a_loop_of_tracebacks_is_read_at_its_end_too(tmp_path, monkeypatch):
    monkeypatch.setattr(scanner, "LINES_AT_MOST", 1000)
    monkeypatch.setattr(scanner, "END_BYTES", 1 << 14)
    monkeypatch.setattr("analyzers.logs.reading.lines.CHUNK_BYTES", 1 << 14)
    log = tmp_path / "job.log"
    log.write_bytes(b"[rank0]: OSError: try again\n" * 20_000 + b"[rank2]: MemoryError: the end\n")
    read = scanner.scan(log)
    assert read.skipped > 100_000
    assert {event.rank for event in read.events} == {0, 2}


def test_many_different_errors_are_counted_not_kept(tmp_path):
    log = tmp_path / "job.log"
    letters = "abcdefghijkl"
    log.write_text(
        "".join(
            f"[rank0]: ValueError: {a}{b}{c}{d}\n" for a in letters for b in letters for c in letters for d in letters
        )
    )
    report = logs.analyze(log)
    assert (len(report.data.events), report.data.left_out) == (2000, 12**4 - 2000)


def test_markup_and_control_characters_have_no_effect(tmp_path):
    log = tmp_path / "job.log"
    nasty = "<script>alert(1)</script> [bold]x[/] \x1b]0;owned\x07\x1b[2J \u202e **md** `code`"
    log.write_text(
        f'Traceback (most recent call last):\n  File "/home/me/{nasty}.py", line 3, in f\nValueError: {nasty}\n'
    )
    report = logs.analyze(log)
    assert report.verdict.kind == "crashed"
    assert "\x1b" not in report.json().decode()
    page = render(report, Format.HTML, discover(log))
    assert "<script>alert(1)" not in page
    assert "\x1b" not in render(report, Format.TEXT, discover(log))


def test_hostile_numbers_stay_numbers(tmp_path):
    log = tmp_path / "job.log"
    digits = "9" * 5000
    log.write_text(
        f"[rank{digits}]: ValueError: x\n[rank0]:[E9999 99:99:99.9 ProcessGroupNCCL.cpp:1] [Rank {digits}] Watchdog"
        f" caught collective operation timeout: WorkNCCL(SeqNum={digits}, OpType=A, NumelIn={digits},"
        f" NumelOut={digits}, Timeout(ms)={digits}) ran for {digits} milliseconds before timing out.\n"
        f"step {digits}\nTried to allocate {digits}.5 GiB\n  rank      : {digits} (local_rank: {digits})\n"
        f'  exitcode  : {digits} (pid: {digits})\n  File "x.py", line {digits}, in f\nValueError: y\n'
    )
    assert logs.analyze(log).json()


def test_an_unreadable_error_file_leaves_the_other_logs(tmp_path):
    (tmp_path / "error.json").write_bytes(b'{"message": ')
    (tmp_path / "job.log").write_bytes(ERROR)
    report = logs.analyze(tmp_path)
    assert report.verdict.ranks == [1]
    assert "logs.unreadable" in {finding.id for finding in report.findings}


def test_a_fifo_is_no_log(tmp_path):
    os.mkfifo(tmp_path / "job.log")
    with pytest.raises(InputError):
        logs.analyze(tmp_path)


def test_a_log_is_read_at_a_fraction_of_the_speed_of_its_lines(tmp_path):
    """The limit is a ratio, as machines differ: forty times the time of going through the lines in Python."""
    log = tmp_path / "job.log"
    line = "[rank{}]:[titan] 2026-01-01 10:00:01,{:03d} - root - INFO - step: {}  loss:  8.0{}  tps: 1,234\n"
    log.write_text("".join(line.format(i % 8, i % 1000, i, i % 999) for i in range(100_000)))
    begin = time.process_time()
    with log.open("rb") as file:
        lines = sum(1 for _ in file)
    middle = time.process_time()
    assert scanner.scan(log).lines == lines
    assert time.process_time() - middle < 40 * max(middle - begin, 0.02)
