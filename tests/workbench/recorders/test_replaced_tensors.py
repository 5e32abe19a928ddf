"""Tensors that a script replaces: weights, gradients and optimizer state keep their category."""

import gc
import weakref

import pytest
import torch
from torch import nn

from analyzers.memory import analyze
from analyzers.run import Kind, discover
from workbench.recorders.memory.recorder import MemoryRecorder


@pytest.mark.parametrize("name", ["weights_replaced", "state_offloaded", "embedding_resized", "state_loaded"])
def test_replaced_tensors_keep_their_category(script, tmp_path, name):
    jobs = script("blocks/replaced_state")
    path, truth = jobs.record(jobs.JOBS[name], tmp_path)
    right, total = jobs.right_bytes(path, truth, show=False)
    assert right == total > 1 << 20
    guessed, total = jobs.right_bytes(jobs.hidden(path, tmp_path), truth, show=False)
    assert guessed >= 0.8 * total


def test_what_a_script_drops_does_not_live_on_in_the_recorder(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = MemoryRecorder(tmp_path, model, optimizer, freq=1)

    def train(step, optimizer):
        with recorder.step(step):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()

    train(1, optimizer)
    dropped = [weakref.ref(optimizer), weakref.ref(model[0])]
    weight = weakref.ref(model[0].weight)
    model[0] = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    train(2, optimizer)
    gc.collect()
    assert [ref() for ref in dropped] == [None, None]
    assert weight() is None
    recorder.close()


@pytest.mark.parametrize("joined", ["the script keeps it", "for the recorder alone"])
@pytest.mark.parametrize(
    "make", [nn.ModuleList, lambda parts: nn.ParameterList(p for m in parts for p in m.parameters())]
)
def test_models_joined_for_the_recorder_are_recorded_like_one(tmp_path, joined, make):
    generator, critic = nn.Sequential(nn.Linear(64, 64)), nn.Linear(64, 64)
    together = make([generator, critic])
    optimizer = torch.optim.AdamW([*generator.parameters(), *critic.parameters()])
    recorder = MemoryRecorder(tmp_path, together, optimizer, freq=1)
    if joined == "for the recorder alone":
        del together
        gc.collect()
    with recorder.step(1):
        critic(generator(torch.randn(4, 64))).sum().backward()
        optimizer.step()
    recorder.close()
    [device] = analyze(discover(tmp_path).of(Kind.SNAPSHOT)).data.devices
    weights = sum(each.nbytes for each in [*generator.parameters(), *critic.parameters()])
    assert device.categories["parameters"] == device.categories["gradients"] == weights
