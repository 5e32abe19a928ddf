"""A job whose memory is recorded runs as one that is not."""

import gc
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.profiler import profile

from workbench.recorders import MemoryRecorder, own_files
from workbench.recorders.memory import cpu_history


class Seen(TorchFunctionMode):
    """A function mode of a script, which stores what is called, and knows no other functions than it has seen."""

    def __init__(self, known=None):
        super().__init__()
        self.known, self.names = known, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", str(function))
        assert self.known is None or name in self.known, name
        self.names.append(name)
        return function(*args, **(kwargs or {}))


def train(step, model, optimizer, steps=range(1, 5)):
    for n in steps:
        with step(n):
            model(torch.ones(2, 4)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def model_and_optimizer():
    model = nn.Linear(4, 4)
    return model, torch.optim.Adam(model.parameters())


def test_a_function_mode_of_the_script_sees_the_script_alone(tmp_path):
    model, optimizer = model_and_optimizer()
    with Seen() as without:
        train(lambda n: nullcontext(), model, optimizer)
    model, optimizer = model_and_optimizer()
    recorder = MemoryRecorder(tmp_path, model, optimizer, freq=2)
    with Seen(set(without.names)) as seen:
        train(recorder.step, model, optimizer)
    recorder.close()
    # PyTorch's own profiler asks for attributes of the model's parameters.
    assert [name for name in seen.names if name != "__get__"] == [name for name in without.names if name != "__get__"]
    assert len(list(tmp_path.glob("*/rank0_memory_snapshot.pickle"))) == 2


def test_a_recorder_that_fails_ends_no_job(tmp_path, monkeypatch, capsys):
    """A script may replace what recorders use, such as the clock in a test of its own."""
    monkeypatch.setattr(own_files, "_noted", [])  # each process notes its first failure alone
    model, optimizer = model_and_optimizer()
    recorder = MemoryRecorder(tmp_path, model, optimizer, freq=2)
    train(recorder.step, model, optimizer)

    def fail():
        raise RuntimeError("no clock")

    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", fail)
        train(recorder.step, model, optimizer, range(5, 9))
        with recorder.step(9), recorder.phase("fwd"):
            pass
    train(recorder.step, model, optimizer, range(10, 13))
    recorder.close()
    assert (tmp_path / "iteration_12").is_dir()
    assert "no clock" in capsys.readouterr().err


def test_a_profiler_that_fails_in_each_step_is_told_once(tmp_path, monkeypatch, capsys):
    class Failing(profile):
        def start(self):
            raise RuntimeError("no library")

        def stop(self):
            raise RuntimeError("no library")

    monkeypatch.setattr(cpu_history, "profile", Failing)
    model, optimizer = model_and_optimizer()
    recorder = MemoryRecorder(tmp_path, model, optimizer, freq=2)
    train(recorder.step, model, optimizer, range(1, 9))
    recorder.close()
    assert capsys.readouterr().err.count("the memory of step") == 1


def test_a_model_is_freed_with_its_recorder_or_before(tmp_path):
    model, optimizer = model_and_optimizer()
    recorder = MemoryRecorder(tmp_path, model, optimizer, freq=2)
    train(recorder.step, model, optimizer)
    left, hooks = weakref.ref(model), weakref.ref(recorder)
    del model, optimizer
    gc.collect()
    assert left() is None
    del recorder
    gc.collect()
    assert hooks() is None


SCHEDULED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
from workbench.recorders import MemoryRecorder

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
recorder = MemoryRecorder(sys.argv[1], model, optimizer, freq=2)
plan = schedule(wait=1, warmup=1, active=2)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda one: print("ready")) as prof:
    for step in range(5):
        with recorder.step(step + 1):
            model(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        prof.step()
print("done")
"""


def test_a_script_may_profile_by_a_schedule_of_its_own(tmp_path):
    """A second session of PyTorch's profiler that begins within the first one would end the process by SIGSEGV."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCHEDULED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout.split()[-1]) == (0, "done"), ended.stderr
    assert "ready" in ended.stdout
    assert ended.stderr.count("the script has a profiler with a schedule of its own") == 1


def test_hooks_of_the_script_on_saved_tensors_are_called(tmp_path):
    calls = []
    hooks = saved_tensors_hooks(lambda one: calls.append("pack") or one, lambda one: calls.append("unpack") or one)
    model, optimizer = model_and_optimizer()
    with hooks:
        train(lambda n: nullcontext(), model, optimizer, steps=range(1, 3))
    without, calls[:] = list(calls), []
    recorder = MemoryRecorder(tmp_path, model, optimizer, freq=2)
    with hooks:
        train(recorder.step, model, optimizer, steps=range(1, 3))
    recorder.close()
    assert calls == without
    assert {"pack", "unpack"} <= set(calls)
