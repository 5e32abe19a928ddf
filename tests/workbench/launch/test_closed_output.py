"""What becomes of a command under `workbench launch` whose output nobody reads, or that cannot be written."""

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


PRINTS = "print('a line', flush=True)\nopen('finished', 'w').close()\nraise SystemExit({status})"


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
@pytest.mark.parametrize("options", ["", pytest.param("--nproc 1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("status", [0, 1])
def test_output_that_cannot_be_written_is_an_error_and_the_job_ends_as_it_would(tmp_path, options, stdout, status):
    (tmp_path / "prints.py").write_text(PRINTS.format(status=status))
    command = f"{sys.executable} -P -m workbench launch --no-watch --no-recorders {options} --"
    ended = subprocess.run(
        f"{command} {sys.executable} prints.py {stdout}", cwd=tmp_path, stderr=subprocess.PIPE, shell=True, check=False
    )
    assert ended.returncode == 3, ended.stderr
    assert b"\nerror: " in ended.stderr
    assert (b"No space left on device" if "full" in stdout else b"stdout is closed") in ended.stderr
    assert (b"the job failed" if status else b"completed") in ended.stderr
    assert (tmp_path / "finished").exists()
    assert any(path.read_text() == "a line\n" for path in tmp_path.rglob("stdout.log"))


def test_a_full_stderr_costs_only_notes(tmp_path):
    (tmp_path / "prints.py").write_text(PRINTS.format(status=0))
    command = f"{sys.executable} -P -m workbench launch --no-watch --no-recorders --"
    ended = subprocess.run(
        f"{command} {sys.executable} prints.py 2>/dev/full",
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        shell=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"a line\n")
