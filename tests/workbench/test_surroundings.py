"""The command line with stdout closed, full or in a limited encoding, with low limits, and after an internal bug."""

import errno
import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.errors import InputError
from workbench.console import escape, guarded, substitute

FIXTURES = Path(__file__).parents[1] / "fixtures"
DUMPS = FIXTURES / "stuck_2ranks" / "dumps"
WORKBENCH = shlex.join([sys.executable, "-m", "workbench"])
COMMAND = f"{WORKBENCH} hang {shlex.quote(str(DUMPS))}"
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(line, limits=None, **environment):
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True, check=False, timeout=240, preexec_fn=limits, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "environment", "status", "printed", "complaint"),
    [
        (COMMAND, C_LOCALE, 0, b"x host stuck", b""),
        (COMMAND, {"PYTHONIOENCODING": "latin-1"}, 0, b"x host stuck", b""),
        (f"{COMMAND} > /dev/full", {}, 3, b"", b"No space left on device\nhint: free space"),
        (f"{COMMAND} <&- >&-", {}, 3, b"", b"stdout is closed\nhint: "),
        (f"{WORKBENCH} --version >&-", {}, 3, b"", b"stdout is closed\nhint: "),
        (f"{WORKBENCH} capabilities --json >&-", {}, 3, b"", b"stdout is closed\nhint: "),
        (f"{WORKBENCH} doctor > /dev/full", {}, 3, b"", b"No space left on device\nhint: "),
        (f"{COMMAND} --json -o /dev/full", {}, 3, b"", b"No space left on device\nhint: "),
        (f"{COMMAND} -o $(mktemp -d)/a.md >&-", {}, 0, b"", b"wrote"),
        (f"{COMMAND} 2>&-", {}, 0, b"host stuck", b""),
        (f"{COMMAND} | true; exit ${{PIPESTATUS[0]}}", {}, 0, b"", b""),
        (f"{COMMAND}/nowhere 2> /dev/full", {}, 3, b"", b""),
        (f"cd $(mktemp -d) && rmdir $PWD && {COMMAND}", {"TERM": "", "HOME": "/nowhere"}, 0, b"host stuck", b""),
    ],
)
def test_the_answer_comes_or_an_error_says_why_not(line, environment, status, printed, complaint):
    ended = shell(line, **environment)
    assert ended.returncode == status, ended.stderr
    assert printed in ended.stdout
    assert complaint in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr


def test_json_is_whole_where_characters_are_missing():
    ended = shell(f"{COMMAND} --json", **C_LOCALE)
    assert json.loads(ended.stdout.decode("ascii"))["verdict"]["class"] == "host_stuck"


def test_few_open_files_are_enough():
    """There are many columns, and each column that is mapped keeps a file open."""
    run = FIXTURES / "oom_2ranks"

    def limits():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    ended = shell(shlex.join([sys.executable, "-m", "workbench", "inspect", str(run), "--no-cache"]), limits)
    assert b"ran out of memory" in ended.stdout, ended.stderr


@pytest.mark.parametrize("megabytes", [30, 60, 100, 150])
def test_too_little_memory_is_an_error(megabytes):
    """There is an error message, not the abort of a library that cannot start threads; Python starts from 30 MB on."""

    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 1_024_000, megabytes * 1_024_000))

    ended = shell(f"{COMMAND} --no-cache", limits)
    assert (ended.returncode, ended.stdout) == (3, b"")
    assert ended.stderr.startswith(b"error: out of memory\nhint: "), ended.stderr


@pytest.mark.parametrize("character", ["✗", "\u2028", "😀", "\udcff", "é", "\x00"])
def test_what_stands_for_a_character_is_ascii_and_fits_into_json(character):
    text, position = substitute(UnicodeEncodeError("ascii", character, 0, 1, "not in range"))
    assert text.isascii()
    assert position == 1
    assert json.loads(f'"{text}"')
    assert json.loads(f'"{escape(character)}"') == character


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ZeroDivisionError("a\n\x1b[31mb"), 70, "error: internal error: ZeroDivisionError: a [31mb\nhint: report it"),
        (RecursionError("too deep"), 70, "RecursionError: too deep"),
        (MemoryError(), 3, "error: out of memory"),
        (OSError(errno.EMFILE, "Too many open files"), 3, "hint: raise the limit on open files"),
        (OSError("odd"), 3, "error: odd\nhint: check"),
        (InputError("no", "try"), 3, "error: no\nhint: try"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_any_end_has_a_status_and_two_lines(error, status, words, capsys):
    with pytest.raises(SystemExit) as ended, guarded():
        raise error
    assert ended.value.code == status
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == (0 if status == 0 else 1 if status == 130 else 2)


def test_debug_shows_where_a_bug_is(monkeypatch, capsys):
    monkeypatch.setenv("WORKBENCH_DEBUG", "1")
    with pytest.raises(SystemExit) as ended, guarded():
        raise ZeroDivisionError
    assert ended.value.code == 70
    assert "test_surroundings.py" in capsys.readouterr().err
