"""Test commands after `--`: which run once per rank, which run once, and which options apply to them."""

import os
import sys
from pathlib import Path

import pytest

from analyzers.errors import InputError
from workbench.errors import UsageProblem
from workbench.launch.job_command import Form, job_command
from workbench.launch.plan import Request, plan

DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=4)  # each calls init_process_group\n"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """Fixture: a folder with a user's programs, which is the working folder of the test."""
    files = {"ddp.py": DDP, "spawns.py": SPAWNS, "plain.py": "print(1)", "my script.py": DDP, "pkg/train.py": DDP}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("torchrun", "accelerate", "deepspeed", "uv"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "form", "needs_ranks"),
    [
        ("python ddp.py --config x.yaml", Form.PYTHON, True),
        ("python3 -u ddp.py", Form.PYTHON, True),
        ("python -X dev -um pkg.train --lr 1", Form.PYTHON, True),
        ("python plain.py", Form.PYTHON, False),
        ("python spawns.py", Form.PYTHON, False),
        ("python -c print(1)", Form.PYTHON, False),
        ("python -m torch.distributed.run --nproc-per-node 4 ddp.py", Form.LAUNCHER, False),
        ("python bin/torchrun ddp.py", Form.LAUNCHER, False),
        ("torchrun --nproc-per-node 4 ddp.py", Form.LAUNCHER, False),
        ("accelerate launch --num_processes 4 ddp.py", Form.LAUNCHER, False),
        ("deepspeed --num_gpus 4 ddp.py", Form.LAUNCHER, False),
        ("uv run torchrun ddp.py", Form.LAUNCHER, False),
        ("bash run.sh deepspeed", Form.OTHER, False),
    ],
)
@pytest.mark.usefixtures("home")
def test_forms(words, form, needs_ranks):
    command = job_command(words.split())
    assert (command.form, command.needs_ranks) == (form, needs_ranks)
    assert command.words == tuple(words.split())


@pytest.mark.usefixtures("home")
def test_a_script_alone_is_run_by_this_python():
    assert job_command(["my script.py", "a b"]).words == (sys.executable, "my script.py", "a b")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["no_such_command"], "command not found"),
        (["python", "no.py"], "no such script"),
        (["no.py"], "no such script"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_is_not_there_is_input_that_is_missing(words, error):
    with pytest.raises(InputError, match=error):
        job_command(words)


@pytest.mark.parametrize(
    ("request_", "ranks"),
    [
        ({"nproc": 4, "command": ("python", "plain.py")}, True),
        ({"nproc": 4, "command": ("bash", "-c", "true")}, True),
        ({"command": ("python", "ddp.py")}, True),
        ({"command": ("python", "plain.py")}, False),
        ({"command": ("bash", "-c", "true")}, False),
        ({"nnodes": 2, "command": ("torchrun", "ddp.py")}, False),
    ],
)
@pytest.mark.usefixtures("home")
def test_who_starts_the_ranks(request_, ranks):
    assert plan(Request(**request_)).starts_ranks is ranks


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"command": ()}, "no command after --"),
        ({"nproc": 4, "command": ("torchrun", "ddp.py")}, "torchrun starts the ranks itself"),
        ({"config": "x.toml", "command": ("python", "ddp.py")}, "--config has no effect"),
        ({"overrides": ("--training.steps", "3"), "command": ("python", "ddp.py")}, "--training.steps has no effect"),
        ({"overrides": ("--job.dmp_folder", "x"), "command": ("python", "ddp.py")}, "unknown key"),
        ({"timeout": 3.0}, "--timeout has no effect without a command"),
        ({"overrides": ("python", "ddp.py")}, "'python' is not an option"),
    ],
)
@pytest.mark.usefixtures("home")
def test_options_without_effect_are_refused(request_, error):
    with pytest.raises(UsageProblem, match=error):
        plan(Request(**request_))


def test_what_the_ranks_are_told(home, monkeypatch):
    """In PYTHONPATH our only folder comes first, and what the user has set follows."""
    monkeypatch.setenv("PYTHONPATH", "lib")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    overrides = ("--job.dump_folder", "out", "--comm.train_timeout_seconds", "30")
    planned = plan(Request(nproc=4, overrides=overrides, command=("python", "ddp.py")))
    hook, *rest = planned.environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(hook).name, rest) == ("startup", ["lib"])
    assert "TORCH_FR_BUFFER_SIZE" not in planned.environment
    assert f'"folder": "{home / "out"}", "timeout_s": 30' in planned.environment["WORKBENCH_RECORD"]
    assert planned.shell().endswith(f"--log_dir {Path('out/logs')} --redirects 3 --no-python python ddp.py")


@pytest.mark.usefixtures("home")
def test_without_recorders_nothing_is_attached():
    planned = plan(Request(nproc=4, recorders=False, command=("python", "ddp.py")))
    assert {"PYTHONPATH", "WORKBENCH_RECORD"}.isdisjoint(planned.environment)
