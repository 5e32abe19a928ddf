"""On a terminal the printed answer fits on one screen; `--full` prints everything, as a pipe gets it."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
_ROWS, _COLUMNS = 24, 100
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(*words):
    """Return the lines that a command prints on a terminal of 24 rows and 100 columns."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update(TERM="xterm", COLUMNS=str(_COLUMNS), LINES=str(_ROWS))
        os.execv(sys.executable, [sys.executable, "-m", "workbench", *map(str, words)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    text = b""
    while part := _read(terminal):
        text += part
    os.waitpid(pid, 0)
    # What was written before the last carriage return of a line is the progress of reading.
    lines = _STYLE.sub("", text.decode()).replace("\r\n", "\n").splitlines()
    return [line.rpartition("\r")[2] for line in lines]


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


@pytest.mark.parametrize("name", ["oom_2ranks", "stuck_4ranks", "leak_2ranks", "healthy_2ranks", "nan_2ranks"])
def test_the_answer_fits_on_a_screen(name):
    lines = shown("inspect", FIXTURES / name, "--no-tui")
    assert len(lines) <= _ROWS
    assert max(map(len, lines)) <= _COLUMNS
    text = " ".join(" ".join(lines).split())
    assert "Verdict " in text
    assert ("--full prints" in text) is (name != "healthy_2ranks")


def test_full_prints_what_a_pipe_gets():
    brief, full = (shown("inspect", FIXTURES / "oom_2ranks", *words) for words in (["--no-tui"], ["--full"]))
    assert len(full) > 2 * len(brief)
    assert "Findings" in full
    assert "Findings" not in brief


def test_no_other_finding_repeats_the_verdict():
    lines = shown("inspect", FIXTURES / "oom_2ranks", "--no-tui")
    assert not [line for line in lines if line.startswith("Also") and "Rank 1 ran out of memory" in line]
