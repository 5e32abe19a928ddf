"""Submit jobs to a cluster's scheduler; if Slurm runs on this machine, to Slurm."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEBUG = ["--module", "llama3", "--config", "llama3_debugmodel"]


def launch(*arguments, **settings):
    command = [sys.executable, "-m", "workbench", "launch", *DEBUG, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | settings
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)


def test_the_job_of_each_node_is_this_launcher():
    script = launch("--nnodes", "4", "--scheduler", "slurm", "--dry-run", "--training.steps", "7").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n" in script
    started = next(line for line in script.splitlines() if line.startswith("srun "))
    assert f"{sys.executable} -m workbench launch" in started
    assert "--nnodes 4" in started
    assert "--nproc" not in started, "the node knows its devices, the login node does not"
    assert started.endswith('--rdzv-endpoint "$rendezvous" --training.steps 7')


def test_torchx_starts_the_trainer():
    told = launch("--nnodes", "2", "--nproc", "8", "--scheduler", "torchx", "--dry-run", "--training.steps", "7").stdout
    assert told.startswith("torchx run dist.ddp -j 2x8 ")
    assert told.rstrip().endswith("-m trainer -- --module llama3 --config llama3_debugmodel --training.steps 7")


def test_a_scheduler_that_is_not_here(tmp_path):
    ended = launch("--scheduler", "slurm", "--job.dump_folder", str(tmp_path), PATH=str(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-2:] == [
        "error: no sbatch on this machine",
        "hint: submit from a login node, or add --dry-run to see the job",
    ]


def has_slurm():
    if not shutil.which("sinfo"):
        return False
    return subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_slurm(), reason="needs a Slurm that runs")
def test_two_nodes_of_slurm_train_and_tell_who_died(tmp_path):
    broken = ["--training.steps", "7", "--incident", "kill", "--job.dump_folder", str(tmp_path)]
    submitted = launch("--nnodes", "2", "--nproc", "2", "--scheduler", "slurm", *broken)
    assert "submitted as job" in submitted.stderr
    [job] = [word for word in submitted.stderr.replace(";", " ").split() if word.isdigit()]
    deadline = time.monotonic() + 240
    while subprocess.run(["squeue", "-h", "-j", job], capture_output=True, text=True, check=False).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    ended = subprocess.run(
        [sys.executable, "-m", "workbench", "inspect", str(tmp_path), "--json"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    verdict = json.loads(ended.stdout)["verdict"]
    assert (verdict["class"], verdict["ranks"]) == ("dead", [3])
