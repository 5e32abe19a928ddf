"""Test the hook that attaches the recorders to scripts which do not call them, in real interpreters."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.launch.recording import START_UP, VARIABLE

ROOT = Path(__file__).parents[3]
TRAIN = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

if "early" in sys.argv:
    raise ImportError("no labels")
dist.init_process_group("gloo")
if "own" in sys.argv:
    from workbench import recorders
    recorders.start("elsewhere", timeout_s=600)
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(16 * 8, 16)), batch_size=16, num_workers=rank == 0)
for step, (batch,) in enumerate(loader, 1):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    if "crash" in sys.argv and rank == 1 and step == 4:
        raise ValueError("bad batch")
import sitecustomize
gloo = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
told = [sitecustomize.MINE, gloo.options._timeout.seconds]
dist.barrier()
dist.destroy_process_group()
time.sleep(1.2)  # the recorders look at the groups once a second
print("told", *told, *(entry for entry in sys.path if "startup" in entry), flush=True)
"""
SPAWN = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn

def main(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        if rank == 1 and step == 4:
            raise ValueError("bad batch")
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""
ALONE = """
import pathlib, time, torch
model = torch.nn.Linear(4, 4)
other, optimizer = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
for step in range(1, 20):
    other.step()
    if step % 3 == 0:
        model(torch.full((2, 4), float("nan" if step == 9 else step))).sum().backward()
    optimizer.step()
    if step == 2:
        pathlib.Path("outputs/profile_now").touch()
        time.sleep(1.5)
raise KeyError("labels")
"""


def test_the_hook_imports_no_torch():
    """It may be imported before torch, and torch's import would ask for the hook before the hook is there."""
    code = "import sys, workbench.recorders.startup.hook; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def launch(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (home / "lib").mkdir(exist_ok=True)
    (home / "lib/sitecustomize.py").write_text("MINE = 'mine'\n")
    paths = os.pathsep.join([str(ROOT), str(home / "lib")])
    command = [sys.executable, "-P", "-m", "workbench", "launch", *words]
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PATH": programs}
    return subprocess.run(command, cwd=home, env=settings, capture_output=True, text=True, check=False, timeout=300)


def steps_of(home: Path, rank: int) -> list[dict[str, object]]:
    lines = (home / f"outputs/steps/rank_{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def verdict_of(ended: "subprocess.CompletedProcess[str]", home: Path) -> dict[str, object]:
    command = [sys.executable, "-P", "-m", "workbench", "inspect", "outputs", "--json"]
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=home, env=settings, capture_output=True, text=True, check=False, timeout=120)
    assert said.returncode == 0, said.stderr + ended.stderr
    return json.loads(said.stdout)["verdict"]


@pytest.mark.slow
def test_a_script_of_four_ranks_is_recorded_as_it_is(tmp_path):
    """Steps, phases, losses and a profile of one step are recorded; the user's own sitecustomize ran, too."""
    (tmp_path / "train.py").write_text(TRAIN)
    ended = launch(tmp_path, "--nproc", "4", "--timeout", "77", "--profile-step", "5", "--", "python", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert sorted(line[3:] for line in ended.stdout.splitlines()) == ["told mine 77"] * 4
    assert "Traceback" not in ended.stderr
    for rank in range(4):
        head, *steps = steps_of(tmp_path, rank)
        assert (head["rank"], head["world_size"]) == (rank, 4)
        assert [step["step"] for step in steps] == list(range(1, 9))
        assert {"data_wait", "bwd", "optim"} <= steps[5]["phases"].keys()
        assert all(0 < step["local_loss"] < 10 for step in steps)
        assert [step["tags"] for step in steps if step["tags"]] == [["first"], ["profile"]]
        assert (tmp_path / f"outputs/profile_traces/iteration_5/rank{rank}_trace.json").stat().st_size > 1000
    # On a busy machine a rank of so short a job may really be late, which is a warning.
    assert verdict_of(ended, tmp_path)["status"] in ("ok", "warning")


@pytest.mark.slow
@pytest.mark.parametrize(("word", "step"), [("crash", 5), ("early", None)])
def test_an_error_is_told_with_its_line(tmp_path, word, step):
    """This also holds for a script that starts recorders itself: then one set of recorders writes the answer."""
    (tmp_path / "train.py").write_text(TRAIN)
    ended = launch(tmp_path, "--nproc", "2", "--", "python", "train.py", word, "own")
    assert ended.returncode == 1
    told = " ".join(ended.stdout.split())
    assert {"crash": "ValueError: bad batch", "early": "ImportError: no labels"}[word] in told
    assert "/train.py:" in told
    assert not (tmp_path / "elsewhere").exists()
    if word == "crash":
        assert f"Rank 1 died at step {step}" in told
        assert "rank 0 waits for it" in told
        assert len(list((tmp_path / "outputs/dumps").glob("groups_*.json"))) == 2


@pytest.mark.slow
def test_ranks_that_a_script_spawns_have_recorders(tmp_path):
    """Such ranks have no variable RANK: the process group says which rank they are."""
    (tmp_path / "spawn.py").write_text(SPAWN)
    ended = launch(tmp_path, "--", "python", "spawn.py", "29583")
    assert ended.returncode == 1
    assert "Rank 1 died at step 4" in " ".join(ended.stdout.split())
    assert "ValueError: bad batch in main" in " ".join(ended.stdout.split())
    assert [len(steps_of(tmp_path, rank)) for rank in range(2)] == [4, 4]


@pytest.mark.slow
def test_a_single_process_is_recorded_and_profiled_at_a_signal(tmp_path):
    """A step ends when the optimizer that stepped first steps again; after the signal, a later step is profiled."""
    (tmp_path / "alone.py").write_text(ALONE)
    ended = launch(tmp_path, "--", "python", "alone.py")
    assert ended.returncode == 1
    assert "KeyError: 'labels' in <module>" in " ".join(ended.stdout.split())
    _, *steps = steps_of(tmp_path, 0)
    assert [step["step"] for step in steps] == list(range(1, 20))
    assert steps[8]["local_loss"] is None
    assert [step["step"] for step in steps if "profile" in step["tags"]] == [15]
    assert list((tmp_path / "outputs/profile_traces").glob("iteration_15/*.json"))


def in_hooked_python(home: Path, program: str, *options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    told = json.dumps({"folder": str(home / "outputs"), "root": str(ROOT)})
    variables = {"PYTHONPATH": os.pathsep.join([str(START_UP), str(home)]), VARIABLE: told, **settings}
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(
        command, cwd=home, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_process_without_torch_pays_for_nothing(tmp_path):
    """Only our own small modules are imported, and our folder is removed from the import path."""
    program = "import sys; print(*sorted(sys.modules)); print(*sys.path)"
    plain = in_hooked_python(tmp_path, program, PYTHONPATH="")
    modules, path = in_hooked_python(tmp_path, program).stdout.splitlines()
    extra = set(modules.split()) - set(plain.stdout.splitlines()[0].split())
    assert extra <= {"sitecustomize"}
    assert "startup" not in path
    assert not (tmp_path / "outputs").exists()


def test_an_error_in_the_users_own_sitecustomize_is_theirs(tmp_path):
    """Python reports the error as it would without our hook, and continues."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('mine')")
    ended = in_hooked_python(tmp_path, "print('goes on')")
    assert ended.stdout == "goes on\n"
    assert "ValueError: mine" in ended.stderr


@pytest.mark.slow
def test_a_module_of_the_user_with_our_name_stays_theirs(tmp_path):
    (tmp_path / "workbench.py").write_text("MINE = True")
    ended = in_hooked_python(tmp_path, "import torch.optim, workbench; print(workbench.MINE)")
    assert ended.stdout == "True\n"
    assert "has the name of our package" in ended.stderr


def test_the_handler_of_a_forked_child_ends_it_and_not_its_parent(tmp_path):
    """SIGTERM ends a forked child; the handler that the child inherited must not wake up its parent."""
    program = """
import os, signal, sys, time
from workbench.recorders.hang.rank_exit import TerminationDelay
delay = TerminationDelay(lambda: print("the parent was woken up", flush=True))
delay.install()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(1)
time.sleep(0.5)
os.kill(child, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
signal.signal(signal.SIGTERM, lambda *_: print("saved a checkpoint", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.5)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.stdout.splitlines() == [str(int(signal.SIGTERM)), "saved a checkpoint"]
