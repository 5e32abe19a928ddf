"""Four real ranks on gloo: one computes more slowly, one is late for an unrecorded reason, or none is late.

Their steps are much longer than the time slices of the cores: in a recording of a tenth of a second, a rank that shares
its core with another process really is the slow one.
"""

import subprocess
import sys

import pytest

from analyzers import traces
from analyzers.run import Kind, discover

JOB = """
import os, sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, steps, size = dist.get_rank(), 8, 320

def train(fault):
    slow = torch.randn(size * 3 // 2, size * 3 // 2) if fault == "slow" and rank == 2 else torch.randn(size, size)
    grad = torch.ones(1000)
    folder = f"{sys.argv[1]}/{fault}/profile_traces/iteration_{steps}"
    os.makedirs(folder, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=steps)) as recorder:
        for step in range(steps + 1):
            dist.barrier()
            if fault == "late" and rank == 2:
                time.sleep(0.25)
            for _ in range(25):
                slow @ slow
            dist.all_reduce(grad)
            if step == steps:
                break
            recorder.step()
    recorder.export_chrome_trace(f"{folder}/rank{rank}_trace.json")

for fault in sys.argv[2:]:
    train(fault)
dist.destroy_process_group()
"""


def stragglers_of(folder, *faults):
    """Run the job in `folder` with each of these faults, and return the stragglers of each."""
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    subprocess.run([*launcher, "job.py", ".", *faults], check=True, capture_output=True, cwd=folder, timeout=300)
    reports = (traces.analyze(discover(folder / fault).of(Kind.TRACE)) for fault in faults)
    return {fault: report.data.stragglers for fault, report in zip(faults, reports, strict=True)}


@pytest.mark.slow
def test_the_rank_and_its_cause_are_named(tmp_path):
    named = stragglers_of(tmp_path / "run", "slow", "late")
    assert [(rank.rank, rank.cause) for rank in named["slow"]] == [(2, "compute")]
    assert "aten::mm" in named["slow"][0].detail
    assert [(rank.rank, rank.cause) for rank in named["late"]] == [(2, "host")]


@pytest.mark.slow
def test_healthy_ranks_have_no_straggler(tmp_path):
    """A rank that shares its core with another program is late in that recording, but hardly in three of three."""
    assert not all(stragglers_of(tmp_path / f"run {number}", "healthy")["healthy"] for number in range(3))
