"""Record a script of one process that has no process group, by two lines of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from workbench import recorders

attached = recorders.start(sys.argv[1] + "/outputs", OPTIONS)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 6):
    if step == LATE:
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
    if step == BAD:
        raise ValueError("bad batch")
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
attached.close()
"""
NEVER = "0"


def run(folder: Path, options: str = "", *, late: str = NEVER, bad: str = NEVER) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("OPTIONS", options).replace("LATE", late).replace("BAD", bad))
    return subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False, timeout=120)


def recorded_steps(folder: Path) -> list[int]:
    _, *lines = (folder / "outputs" / "steps" / "rank_0.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "steps=True", "timeout_s=60, steps=True, profile_step=2"])
def test_a_process_without_a_group_trains_on_and_has_its_steps_recorded(tmp_path: Path, options: str) -> None:
    ended = run(tmp_path, options)
    assert ended.returncode == 0
    assert "not recorded" not in ended.stderr
    assert recorded_steps(tmp_path) == [1, 2, 3, 4, 5]
    assert (tmp_path / "outputs" / "profile_traces").exists() == ("profile_step" in options)
    assert not (tmp_path / "outputs" / "dumps").exists()


@pytest.mark.slow
def test_the_exception_that_ends_a_process_without_a_group_is_recorded(tmp_path: Path) -> None:
    assert run(tmp_path, "steps=True", bad="3").returncode == 1
    report = json.loads((tmp_path / "outputs" / "dumps" / "exit_0.json").read_text())
    assert (report["error"], report["message"]) == ("ValueError", "bad batch")


@pytest.mark.slow
def test_a_group_that_is_created_later_gets_its_dumps(tmp_path: Path) -> None:
    assert run(tmp_path, late="3", bad="5").returncode == 1
    assert recorded_steps(tmp_path) == [1, 2, 3, 4]
    assert (tmp_path / "outputs" / "dumps" / "rank_0").exists()


@pytest.mark.slow
def test_recorders_that_cannot_start_do_not_end_the_script(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    ended = run(tmp_path, "steps=True")
    assert ended.returncode == 0
    assert ended.stderr.count("workbench: not recorded") == 1
    assert "Traceback" not in ended.stderr
