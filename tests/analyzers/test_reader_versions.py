"""After a change of any module of an analyzer, its cached results are computed again."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ANALYZERS = Path(__file__).parents[2] / "analyzers"


def version(root, reader):
    code = f"from analyzers.{reader} import VERSION; print(VERSION)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return ended.stdout


@pytest.mark.parametrize(
    ("reader", "changed"),
    [
        ("memory.digest", "memory/model.py"),
        ("memory.digest", "memory/categorise.py"),
        ("traces.digest", "traces/model.py"),
        ("traces.digest", "traces/kernels.py"),
    ],
)
def test_a_changed_module_of_the_room_changes_its_version(tmp_path, reader, changed):
    shutil.copytree(ANALYZERS, tmp_path / "analyzers", ignore=shutil.ignore_patterns("__pycache__"))
    before = version(tmp_path, reader)
    assert version(tmp_path, reader) == before
    with (tmp_path / "analyzers" / changed).open("a") as module:
        module.write("\n# another line\n")
    assert version(tmp_path, reader) != before
