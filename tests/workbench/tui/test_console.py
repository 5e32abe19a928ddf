"""Text from files cannot control the terminal; errors are two lines."""

import subprocess
import sys

from workbench.console import clean


def test_control_characters_are_taken_out():
    assert clean("a\x1b[31mb\x07\x9bc\td") == "a[31mbc\td"


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        **options,
    )


def test_a_missing_path_is_two_lines_and_exit_status_3(tmp_path):
    ended = run("inspect", str(tmp_path / "nowhere"))
    assert ended.returncode == 3
    error, hint = ended.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert ended.stdout == ""


def test_debug_adds_a_traceback(tmp_path):
    ended = run("inspect", "--debug", str(tmp_path / "nowhere"))
    assert ended.returncode == 3
    assert "Traceback" in ended.stderr


def test_an_unknown_option_is_a_usage_error():
    assert run("inspect", "--nonsense", ".").returncode == 2


def test_a_file_that_exists_is_not_overwritten(tmp_path):
    kept = tmp_path / "report.json"
    kept.write_text("mine")
    (tmp_path / "run.json").write_text("{}")
    ended = run("report", str(tmp_path), "-o", str(kept))
    assert (ended.returncode, kept.read_text()) == (2, "mine")
