"""Launch real processes: jobs that succeed, jobs that fail and are explained, and no process is left over."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "workbench", "launch", "--module", "llama3", "--config", "llama3_debugmodel"]


def launch(folder, *more):
    return subprocess.run(
        [*COMMAND, "--nproc", "2", "--job.dump_folder", str(folder), *more],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def manifest(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_run_that_completes(tmp_path):
    """There are plain progress lines on stderr, nothing on stdout, exit status 0, and a complete run.json."""
    ended = launch(tmp_path, "--training.steps", "3")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert [line.split()[1] for line in ended.stderr.splitlines() if line.startswith("step")] == ["1/3", "2/3", "3/3"]
    written = manifest(tmp_path)
    assert (written["status"], written["exit_codes"], written["cause"]) == ("completed", {}, None)
    assert written["ended_ns"] > written["started_ns"]


def test_a_run_that_dies_is_explained(tmp_path):
    """After the kill of a rank, the exit status is 1, and stdout names the culprit and the victims."""
    ended = launch(tmp_path, "--incident", "kill")
    assert ended.returncode == 1
    flat = " ".join(ended.stdout.split())
    assert "Rank 1 died" in flat
    assert "killed by signal 9" in flat
    assert "rank 0 waits" in flat
    assert f"workbench inspect {tmp_path}" in flat
    assert manifest(tmp_path)["exit_codes"]["1"] == -signal.SIGKILL


def test_a_rank_that_holds_the_gil_is_found_before_the_timeout(tmp_path):
    """Its dump comes without the help of Python, and its stack by a signal."""
    # Both rounds of dumps must end before the timeout, on a busy machine, too.
    ended = launch(tmp_path, "--incident", "stuck_gil", "--comm.train_timeout_seconds", "30")
    assert ended.returncode == 1
    flat = " ".join(ended.stdout.split())
    assert "host stuck" in flat, ended.stdout + ended.stderr
    assert "Rank 1 is stuck at step 6 in hold_gil (trainer/faults.py:" in flat
    first = json.loads((tmp_path / "dumps" / "collection.json").read_text())["rounds"][0]["ranks"]
    assert {rank: told["status"] for rank, told in first.items()} == {"0": "ok", "1": "ok"}
    assert first["1"]["channel"] == "json"


CUT = """
import os, time
if os.environ["RANK"] == "0":
    time.sleep(60)
open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write('{"message": ')
os._exit(3)
"""


def test_a_rank_that_was_killed_while_it_wrote_its_error_is_explained(tmp_path):
    """Torchrun's agent parses that file, and its parser's exception was taken for a fault of the launcher."""
    (tmp_path / "job.py").write_text(CUT)
    command = [sys.executable, "-m", "workbench", "launch", "--nproc", "2", "--", sys.executable, "job.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert "Rank 1 died: exit code 3" in ended.stdout
    assert manifest(tmp_path / "outputs")["exit_codes"]["1"] == 3


def test_a_second_run_keeps_what_the_first_left(tmp_path):
    launch(tmp_path, "--training.steps", "2")
    began = manifest(tmp_path)["started_ns"]
    launch(tmp_path, "--training.steps", "2")
    assert manifest(tmp_path)["started_ns"] > began
    [kept] = list((tmp_path / "previous").glob("*/run.json"))
    assert json.loads(kept.read_text())["started_ns"] == began


def test_ctrl_c_ends_all_ranks(tmp_path):
    """The exit status is 130, no process is left, and the run is marked as interrupted."""
    job = subprocess.Popen(
        [*COMMAND, "--nproc", "2", "--job.dump_folder", str(tmp_path), "--training.steps", "100000"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    logs = [tmp_path / "steps" / f"rank_{rank}.jsonl" for rank in (0, 1)]
    wait_for(lambda: all(log.exists() and "\n" in log.read_text() for log in logs))
    ranks = [json.loads(log.read_text().splitlines()[0])["pid"] for log in logs]
    os.killpg(job.pid, signal.SIGINT)
    _, narration = job.communicate(timeout=240)
    assert job.returncode == 130
    assert "interrupted" in narration
    assert "Traceback" not in narration
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    assert manifest(tmp_path)["status"] == "interrupted"


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_a_foreign_command_runs_with_its_status(tmp_path):
    """Flight Recorder's variables are set for the command, and its exit status is returned."""
    program = "import os, sys; sys.exit(0 if os.environ['TORCH_FR_BUFFER_SIZE'] == '20000' else 5)"
    command = [sys.executable, "-m", "workbench", "launch", "--", sys.executable, "-c", program]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=240).returncode == 0


@pytest.mark.parametrize("incident", ["oom", "straggler_gc"])
def test_a_demo_ends_with_its_diagnosis(tmp_path, incident):
    """The exit status is 0, because the run was meant to break, and stdout has the report as JSON."""
    command = [sys.executable, "-m", "workbench", "demo", incident, "--folder", str(tmp_path), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)["verdict"]
    expected = {"oom": "oom", "straggler_gc": "straggler"}[incident]
    assert (verdict["class"], verdict["ranks"]) == (expected, [1])


FAILING = """
import os
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        raise ValueError("a batch of no tokens")
    dist.barrier()

main()
"""


def test_two_nodes_agree_on_the_rank_that_failed(tmp_path):
    """Each launcher sees its own workers, numbered from 0, so the second node's 0 is rank 1.

    Either launcher may have the store through which they meet, so either may see the other end first.
    """
    (tmp_path / "failing.py").write_text(FAILING)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "workbench", "launch", "--trainer", "failing", "--nnodes", "2", "--nproc", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    nodes = [
        subprocess.Popen(
            [*command, "--rdzv-endpoint", f"localhost:{port}"], cwd=tmp_path, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        said = [node.communicate(timeout=200)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [1, 1], said
    assert not any("Traceback" in text for text in said), said
    written = manifest(tmp_path / "outputs")
    assert (written["cause"]["rank"], written["cause"]["message"]) == (1, "a batch of no tokens")
    assert written["cause"]["node"] == socket.gethostname()
    assert written["launches"][Path(written["cause"]["log"]).parents[2].name]["first_rank"] == 1
