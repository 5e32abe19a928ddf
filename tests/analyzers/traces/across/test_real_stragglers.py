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

for fault in ("healthy", "slow", "late"):
    train(fault)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stragglers")
    (folder / "job.py").write_text(JOB)
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    subprocess.run([*launcher, "job.py", "."], check=True, capture_output=True, cwd=folder, timeout=300)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "expected"), [("slow", [(2, "compute")]), ("late", [(2, "host")]), ("healthy", [])])
def test_the_rank_and_its_cause_are_named(job, fault, expected):
    report = traces.analyze(discover(job / fault).of(Kind.TRACE))
    assert [(slow.rank, slow.cause) for slow in report.data.stragglers] == expected
    if fault == "slow":
        assert "aten::mm" in report.data.stragglers[0].detail
