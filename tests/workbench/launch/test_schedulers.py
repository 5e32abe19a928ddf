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


def test_nodes_of_slurm_write_their_files_to_one_url():
    script = launch("--nnodes", "4", "--scheduler", "slurm", "--collect", "s3://bucket/run", "--dry-run").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert "--collect s3://bucket/run" in script


def test_a_job_for_kubernetes_writes_the_files_of_its_pods_to_a_url():
    yaml = pytest.importorskip("yaml")
    words = ["-c", "import os; print('a: #b $(HOME) \u00e9')"]
    asked = ["--scheduler", "kubernetes", "--image", "reg.example.com/train:1", "--nnodes", "4", "--dry-run"]
    command = [*asked, "--nproc", "8", "--collect", "s3://bucket/run", "--", sys.executable, *words]
    printed = subprocess.run(
        [sys.executable, "-m", "workbench", "launch", *command],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert printed.stderr == ""
    network, job = yaml.safe_load_all(printed.stdout)
    assert (network["kind"], job["kind"]) == ("Service", "Job")
    name, spec = job["metadata"]["name"], job["spec"]
    assert (job["apiVersion"], network["apiVersion"]) == ("batch/v1", "v1")
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert spec["template"]["spec"]["subdomain"] == network["metadata"]["name"] == name
    assert network["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}
    }  # fmt: skip
    [node] = spec["template"]["spec"]["containers"]
    launched = node["command"]
    assert launched[:4] == ["workbench", "launch", "--rdzv-endpoint", f"{name}-0.{name}:29500"]
    assert launched[launched.index("--collect") + 1] == "s3://bucket/run"
    assert launched[launched.index("--") + 1 :] == [sys.executable, "-c", words[1].replace("$(", "$$(")]
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert name.islower()


@pytest.mark.parametrize(
    ("options", "says"),
    [([], "no image"), (["--image", "x"], "the disk of a pod is gone")],
)
def test_what_kubernetes_needs_is_said(options, says):
    ended = launch("--scheduler", "kubernetes", "--dry-run", *options)
    assert ended.returncode == 2
    assert says in ended.stderr.splitlines()[-2]


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
