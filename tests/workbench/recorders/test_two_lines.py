"""Record steps, traces and a hang in a script by two lines of its own, without the launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ranks
from analyzers.run import Kind, discover

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workbench import recorders

folder, stuck_at = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
recorders.start(folder, timeout_s=20, steps=True, profile_step=2)

def load(step):
    if step == stuck_at and dist.get_rank() == 1:
        time.sleep(60)
    return torch.randn(4, 8)

def train():
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 5):
        loss = model(load(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train()
dist.destroy_process_group()
"""


def run(tmp_path: Path, stuck_at: int) -> tuple[int, Path]:
    script, folder = tmp_path / "train.py", tmp_path / "outputs"
    script.write_text(SCRIPT)
    ended = ranks.run_job(str(script), [str(folder), str(stuck_at)], tmp_path / "logs", 2)
    return ended.returncode, folder


@pytest.mark.slow
def test_two_lines_record_steps_and_a_trace(tmp_path: Path) -> None:
    code, folder = run(tmp_path, 0)
    assert code == 0
    for rank in (0, 1):
        _, *steps = map(json.loads, (folder / "steps" / f"rank_{rank}.jsonl").read_text().splitlines())
        assert [step["step"] for step in steps] == [1, 2, 3, 4]
        assert steps[1]["tags"] == ["profile"]
        assert {"bwd", "optim"} <= set(steps[2]["phases"])
        assert steps[2]["local_loss"] > 0
    assert len(discover(folder).of(Kind.TRACE)) == 2
    assert not (folder / "dumps" / "collection.json").exists()


PRINTS_ERRORS = """
import code, os, sys
from pathlib import Path
import torch.distributed as dist
from workbench import recorders

def caught(function):
    try: divmod(1, 0)
    except ZeroDivisionError: function(*sys.exc_info())

folder = Path(sys.argv[1])
for number in range(2):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{number}", rank=0, world_size=1)
    recorders.start(folder, timeout_s=20)
    caught(sys.excepthook)
    code.InteractiveConsole().push("1 / 0")
    caught(lambda *error: print("hook", error[0].__name__))
    print("ended early", (folder / "dumps" / "exit_0.json").exists(), flush=True)
    dist.destroy_process_group()
{end}
"""


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("raise KeyError('the end')", "KeyError"),
        ("sys.excepthook = print\nraise KeyError('the end')", "KeyError"),
        # As coverage and other tools run a script.
        ("try: raise KeyError('the end')\nexcept KeyError: sys.excepthook(*sys.exc_info()); sys.exit(1)", "KeyError"),
        ("caught(sys.excepthook); sys.exit(1)", "SystemExit"),
        ("sys.excepthook = lambda *error: None; code.InteractiveConsole().push('1 / 0')", None),
    ],
    ids=["uncaught", "another hook", "a tool", "exit", "a console"],
)
def test_only_the_exception_that_ends_a_rank_is_recorded(tmp_path: Path, end: str, error: str | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(PRINTS_ERRORS.replace("{end}", end))
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        [sys.executable, script, tmp_path], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == (1 if error else 0), ended.stderr
    assert ended.stdout.count("ended early False") == 2
    assert ended.stderr.count("DETAIL") == 1  # said once, not for each group
    path = tmp_path / "dumps" / "exit_0.json"
    assert (json.loads(path.read_text())["error"] if path.exists() else None) == error
