"""A command runs where no run can be recorded in the current folder, and its failure is explained as elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.errors import Exit

SCRIPT = "import sys; print('ran in', sys.argv[1]); sys.exit(int(sys.argv[2]))"


def launched(home: Path, enter: str, status: int) -> "subprocess.CompletedProcess[str]":
    (home / "script.py").write_text(SCRIPT)
    (home / "temporary").mkdir()
    command = f"exec {sys.executable} -P -m workbench launch --no-watch --nproc 1 -- {sys.executable}"
    return subprocess.run(
        ["sh", "-c", f"{enter}; {command} {home}/script.py here {status}"],
        cwd=home,
        env=os.environ | {"TMPDIR": str(home / "temporary")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "enter",
    [
        pytest.param("mkdir gone; cd gone; rmdir ../gone", id="removed"),
        pytest.param("cd /proc", id="not writable"),
        pytest.param("mkdir other; cd other; touch outputs", id="a file has the name of the folder"),
    ],
)
def test_a_failure_is_recorded_elsewhere_and_explained(tmp_path: Path, enter: str) -> None:
    ended = launched(tmp_path, enter, 5)

    assert ended.returncode == Exit.FINDINGS
    assert "ran in here" in ended.stdout
    assert "Rank 0 died: exit code 5" in ended.stdout
    assert "error:" not in ended.stderr
    recorded = re.search(r"the run is recorded in (\S+), because .*outputs cannot be written", ended.stderr)
    assert recorded
    assert (Path(recorded[1]) / "run.json").exists()
    assert Path(recorded[1]).parent == tmp_path / "temporary"


def test_a_script_runs_in_a_removed_folder(tmp_path: Path) -> None:
    ended = launched(tmp_path, "mkdir gone; cd gone; rmdir ../gone", 0)

    assert (ended.returncode, ended.stdout) == (Exit.OK, "ran in here\n")


def test_a_failed_job_is_said_to_have_failed_where_its_files_cannot_be_analysed(tmp_path: Path) -> None:
    without_proc = "mount -t tmpfs none /proc && exec sh -c"
    if subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{without_proc} true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("this user may not mount a file system")
    launcher = f"{sys.executable} -P -m workbench launch --no-watch -- sh -c 'echo ran; exit 5'"

    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{without_proc} "{launcher}"'],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout) == (Exit.FINDINGS, "ran\n")
    assert "the command with exit status 5" in ended.stderr
    assert "cannot be analysed here" in ended.stderr
