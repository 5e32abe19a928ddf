"""Files and folders that this user may not read or write, as on the disk of a shared machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import privileges
import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"


def run(*words, **environment):
    """Run a command as a user who is not root; nobody owns more than the permissions say."""
    return subprocess.run(
        [sys.executable, "-m", "workbench", *map(str, words)], capture_output=True, text=True, check=False, timeout=240,
        preexec_fn=privileges.drop, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def stuck(tmp_path):
    yield (folder := Path(shutil.copytree(FIXTURES / "stuck_2ranks", tmp_path / "run")))
    for path in (folder / "dumps", folder / "run.json"):
        path.chmod(0o755)


@pytest.mark.parametrize(("closed", "kind"), [("run.json", "host_stuck"), ("dumps", "collective_timeout")])
def test_what_may_not_be_read_is_named_and_the_rest_answered(stuck, closed, kind):
    (stuck / closed).chmod(0)
    ended = run("inspect", stuck, "--json")
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)["verdict"]
    assert verdict["class"] == kind
    assert f"{stuck / closed}: Permission denied" in verdict["missing"]


def test_a_folder_that_may_not_be_read_is_an_error(stuck):
    stuck.chmod(0)
    ended = run("hang", stuck / "dumps")
    stuck.chmod(0o755)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith(f"error: {stuck / 'dumps'}: Permission denied\nhint: ")


@pytest.mark.parametrize("mode", [0o555, 0])
def test_a_cache_that_may_not_be_written_costs_a_note_only(tmp_path, mode):
    (tmp_path / "cache").mkdir(mode)
    (tmp_path / "cache").chmod(mode)
    ended = run("inspect", FIXTURES / "oom_2ranks", "--json", WORKBENCH_CACHE=str(tmp_path / "cache"))
    assert json.loads(ended.stdout)["verdict"]["class"] == "oom"
    assert "Permission denied" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_cache_that_cannot_be_cleared_is_an_error(tmp_path):
    cache = {"WORKBENCH_CACHE": str(tmp_path)}
    assert run("inspect", FIXTURES / "oom_2ranks", **cache).returncode == 0
    entries = [path for path in tmp_path.iterdir() if path.is_dir()]
    for path in (*entries, tmp_path):
        path.chmod(0o555)
    ended = run("cache", "--clear", **cache)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert f"{len(entries)} of {len(entries)} entries cannot be deleted" in ended.stderr
    for path in (tmp_path, *entries):
        path.chmod(0o755)
    assert f"deleted {len(entries)} entr" in run("cache", "--clear", **cache).stdout


def test_a_report_into_a_folder_of_somebody_else_is_an_error(tmp_path):
    tmp_path.chmod(0o555)
    ended = run("report", FIXTURES / "oom_2ranks", "-o", tmp_path / "report.md")
    assert ended.returncode == 3
    assert "was not written: Permission denied\nhint: " in ended.stderr
    assert not list(tmp_path.iterdir())


def test_sources_that_may_not_be_read_are_not_on_this_machine(tmp_path):
    """A stack of a colleague's job names files in folders that only they may enter: no page or screen fails."""
    (home := tmp_path / "home").mkdir()
    for name in ("closed.py", "open.py"):
        (home / name).write_text("x = 1\n")
    (home / "closed.py").chmod(0)

    def asked(name):
        code = f"from workbench.source_files import find_source; print(find_source('{home}/{name}:1'))"
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, preexec_fn=privileges.drop
        ).stdout

    assert "open.py" in asked("open.py")
    assert asked("closed.py") == "None\n"
    home.chmod(0)
    assert asked("open.py") == "None\n"
    home.chmod(0o755)
