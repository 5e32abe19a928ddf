"""A script keeps its own files in the folder of the run, whatever it writes there, and ours do not depend on it."""

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.errors import Exit
from workbench.launch import run_manifest
from workbench.launch.agent import Outcome
from workbench.launch.run_manifest import first_error, record_outcome, record_start, set_aside_earlier_run

OWN = '{"lr": 1}'


def launched(folder: Path, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--no-watch", *options, "--", sys.executable]
    return subprocess.run([*command, "script.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_run_json_of_the_script_stays_as_it_is(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "run.json").write_text(OWN)

    ended = launched(tmp_path, "print(open('outputs/run.json').read())")

    assert ended.returncode == Exit.OK
    assert OWN in ended.stdout
    assert (outputs / "run.json").read_text() == OWN
    assert "the start of the job is not recorded" in ended.stderr


def test_a_run_json_that_the_script_writes_stays_as_it_is(tmp_path: Path) -> None:
    ended = launched(tmp_path, f"open('outputs/run.json', 'w').write({OWN!r})")

    assert ended.returncode == Exit.OK
    assert (tmp_path / "outputs" / "run.json").read_text() == OWN


def test_the_next_run_finds_the_files_of_the_script(tmp_path: Path) -> None:
    record_start(tmp_path, ["true"], 1)
    record_outcome(tmp_path, 0.0, Outcome("completed"))
    theirs = ["steps/step_5.ckpt", "dumps/mine/data.json", "nodes/graph.txt", "health/report.txt"]
    ours = ["steps/rank_0.jsonl", "steps/heartbeat_0.bin", "dumps/round_2/rank_0.json", "dumps/.claimed"]
    ours += ["nodes/n1/node.json", "nodes/n1/logs/x.log", "memory_snapshot/iteration_5/rank0_memory_snapshot.pickle"]
    for name in (*theirs, *ours):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    set_aside_earlier_run(tmp_path)

    assert [(tmp_path / name).exists() for name in theirs] == [True] * len(theirs)
    assert [(tmp_path / name).exists() for name in ours] == [False] * len(ours)
    (previous,) = (tmp_path / "previous").iterdir()
    assert [(previous / name).read_text() for name in ours] == ours


@pytest.mark.parametrize(
    ("name", "timestamp"), [("0", "9" * 5000), ("0", "²"), ("0", "-1"), ("mine", "1"), ("0", "9" * 12)]
)
def test_an_odd_error_file_of_the_script_is_no_error_of_the_launcher(tmp_path: Path, name: str, timestamp: str) -> None:
    path = tmp_path / "x" / "attempt_0" / name / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"message": {"message": "E: m", "extraInfo": {"timestamp": timestamp}}}))

    cause = first_error(tmp_path, 0.0)

    assert (cause is None) == (name == "mine")
    assert cause is None or cause["message"] == "m"


def test_the_end_of_a_job_is_recorded_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_start(tmp_path, ["train.py"], 1)
    if (tmp_path / "run.json").stat().st_blocks * 512 < 4096:
        pytest.skip("this file system keeps small files without a block")

    def full(*_: object, **__: object) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_manifest, "replacing", full)
    record_outcome(tmp_path, 0.0, Outcome("failed", {0: 5}))

    manifest = json.loads((tmp_path / "run.json").read_text())
    assert (manifest["status"], manifest["exit_codes"], manifest["command"]) == ("failed", {"0": 5}, ["train.py"])


def test_what_is_written_about_a_job_is_for_its_owner_alone(tmp_path: Path) -> None:
    ended = launched(tmp_path, "print('secret')", "--nproc", "1")
    assert ended.returncode == Exit.OK

    files = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file()]

    assert {path.name for path in files} >= {"run.json", "stdout.log", "stderr.log"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_what_is_written_about_a_failed_job_is_for_its_owner_alone(tmp_path: Path) -> None:
    group = "import torch.distributed as dist\ndist.init_process_group('gloo')"
    script = f"{group}\nif dist.get_rank(): raise ValueError\ndist.barrier()"
    ended = launched(tmp_path, script, "--nproc", "2")
    assert ended.returncode == Exit.FINDINGS

    files = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file() and path.name != "error.json"]

    assert {path.name for path in files} >= {"run.json", "collection.json", ".claimed", "exit_1.json", "stacks_0.txt"}
    assert {path.name for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600} == set()
