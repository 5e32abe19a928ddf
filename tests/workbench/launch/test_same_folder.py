"""Two launches into one folder at the same time, and a job that is restarted, run as they would without recorders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import sys, time
for n in range(20):
    print(sys.argv[1], n, flush=True)
    time.sleep(0.1)
sys.exit(int(sys.argv[2]))
"""
RESTARTED = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if sys.argv[1:]:
    from workbench import recorders
    recorders.start(sys.argv[1], steps=True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for n in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if n == 1 and attempt == 0:
        sys.exit(3)
dist.destroy_process_group()
print("done, attempt", attempt, flush=True)
"""


def test_two_launches_into_one_folder_each_run_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--no-watch", "--", sys.executable, "prints.py"]
    jobs = [
        subprocess.Popen(
            [*command, name, status], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name, status in (("first", "0"), ("second", "0"), ("third", "5"))
    ]
    shown = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 1], shown
    for name, (out, err) in zip(("first", "second", "third"), shown, strict=True):
        assert [line for line in out.splitlines() if line.startswith(name)] == [f"{name} {n}" for n in range(20)]
        assert "internal error" not in err


@pytest.mark.slow
@pytest.mark.parametrize("folder", [[], ["outputs"]])
def test_a_job_is_restarted_with_the_recorders(tmp_path: Path, folder: list[str]) -> None:
    """Under the launcher, and with the two lines."""
    (tmp_path / "restarted.py").write_text(RESTARTED)
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts", "1"]
    launcher = [] if folder else ["-P", "-m", "workbench", "launch", "--no-watch", "--", sys.executable]
    ended = subprocess.run(
        [sys.executable, *launcher, *agent, "restarted.py", *folder],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["done, attempt 1"]
    assert "workbench:" not in ended.stderr
