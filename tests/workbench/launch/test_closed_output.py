"""A command under `workbench launch` ends when the reader of its output has gone, as it would without the launcher."""

import subprocess
import sys

import pytest

ENDLESS = "import itertools\nfor n in itertools.count(): print('line', n, flush=True)"


@pytest.mark.parametrize("options", [[], pytest.param(["--nproc", "2"], marks=pytest.mark.slow)])
def test_an_endless_command_ends_with_its_reader(tmp_path, options):
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--no-watch", "--no-recorders", *options, "--"]
    with subprocess.Popen(
        [*command, sys.executable, "endless.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert b"line" in process.stdout.readline()
        process.stdout.close()
        process.wait(60)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 100 << 20
