"""Jobs that hang right now without recorders: their ranks are found, and their stacks alone give the verdict."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranks import free_port
from workbench.commands.running_job import py_spy

ROOT = Path(__file__).parents[3]
JOB = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn

def load_batch(rank, step):
    while sys.argv[1] == "stuck" and rank == 1 and step == 3:
        time.sleep(0.5)
    return torch.randn(4, 8)

def evaluate():
    dist.barrier()

def train(rank=-1):
    if rank >= 0:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[2]
    dist.init_process_group("gloo", rank=rank, world_size=2 if rank >= 0 else -1)
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    for step in range(1, 10**9):
        model(load_batch(rank, step)).sum().backward()
        if sys.argv[1] == "branch" and rank == 0 and step == 3:
            evaluate()
        if step == 2:
            print("hangs soon", flush=True)

if __name__ == "__main__":
    mp.spawn(train, nprocs=2) if sys.argv[1] == "stuck" else train()
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def workbench(*words: object, **settings: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "workbench", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT | settings, timeout=240, check=False)


@pytest.mark.slow
@pytest.mark.skipif(py_spy() is None, reason="needs py-spy")
@pytest.mark.parametrize("kind", ["branch", "stuck"])
def test_the_ranks_are_found_and_their_stacks_judged(tmp_path, kind):
    """Given one rank's process, its siblings are found, too; so are the ranks of the process that spawned them."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "3"] if kind == "branch" else []
    command = [sys.executable, *launcher, str(script), kind, str(free_port())]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            assert all(job.stdout.readline() for _ in range(3 if kind == "branch" else 2))
            time.sleep(2)
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            asked = job.pid if kind == "stuck" else children[-1]
            without = workbench("hang", "--pid", asked, PATH=str(tmp_path))
            said = workbench("hang", "--pid", asked, "--json")
        finally:
            for pid in [*children, job.pid]:
                os.kill(int(pid), signal.SIGKILL)
    assert said.returncode == 0, said.stderr
    document = json.loads(said.stdout)
    verdict = document["verdict"]
    shutil.rmtree(Path(document["inputs"][0]["path"]).parent.parent)
    if kind == "branch":
        assert (verdict["class"], verdict["ranks"]) == ("mismatch", [0])
        assert "Rank 0 is in barrier" in verdict["sentence"]
        assert "ranks 1-2 are in the backward pass" in verdict["sentence"]
    else:
        assert (verdict["class"], verdict["ranks"]) == ("host_stuck", [1])
        assert "Rank 1 is stuck in load_batch" in verdict["sentence"]
        assert document["data"]["culprits"][0]["victims"] == [0]
    if shutil.which("py-spy", path=str(Path(sys.executable).parent)) is None:
        assert (without.returncode, without.stdout) == (2, "")
        assert "torch-workbench[stacks]" in without.stderr.splitlines()[-1]
