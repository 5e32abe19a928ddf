"""An error that a script catches and prints is not why its run ends later."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import os, signal, time, traceback, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))

def look_up(table):
    return table["labels"]

def wait_for_a_flag():
    while True:
        pass

for step in range(1, 100):
    model(torch.randn(4, 8)).sum().backward()
    print(f"step {step}", flush=True)
    time.sleep(0.02)
    if step == 3 and rank == 0:
        try:
            raise OSError(28, "No space left on device", "step_3.pt")
        except OSError:
            traceback.print_exc()
    if step == 10:
        ENDING
"""
_ENDINGS = {
    "stuck": ("if rank == 1: wait_for_a_flag()", "host_stuck", [1]),
    "crashed": ("if rank == 1: look_up({})", "crashed", [1]),
    "interrupted": ("if rank == 0: os.kill(os.getppid(), signal.SIGTERM)", "unknown", []),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", _ENDINGS)
def test_a_full_disk_that_a_rank_survived_is_not_the_answer(tmp_path: Path, ending: str) -> None:
    line, kind, ranks = _ENDINGS[ending]
    (tmp_path / "train.py").write_text(_SCRIPT.replace("ENDING", line))
    command = [sys.executable, "-m", "workbench"]
    subprocess.run(
        [*command, "launch", "--nproc", "2", "--timeout", "10", "--", "train.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        timeout=120,
    )
    asked = subprocess.run([*command, "inspect", "outputs", "--json"], cwd=tmp_path, check=False, capture_output=True)
    report = json.loads(asked.stdout)
    assert (report["verdict"]["class"], report["verdict"]["ranks"]) == (kind, ranks)
    assert "step_3.pt" not in report["verdict"]["sentence"]
    [caught] = [finding for finding in report["findings"] if "step_3.pt" in finding["title"]]
    assert caught["severity"] == ("error" if ending == "interrupted" else "info")
