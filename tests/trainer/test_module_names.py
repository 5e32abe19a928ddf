"""Which module an allocation belongs to, in the forward and in the backward pass."""

import torch
from torch import nn

from trainer.estimate.tracker import LOSS, NO_MODULE, ROOT, ModuleNames, RunningModule


def model():
    return nn.Sequential(
        nn.Embedding(4, 2), nn.ModuleDict({"0": nn.Linear(2, 2), "1": nn.Sequential(nn.Linear(2, 2))}), nn.Linear(2, 4)
    )


def test_layers_of_a_stack_have_one_name():
    names = ModuleNames()
    names.learn(model())
    assert [names.folded(name) for name in ("1.0", "1.1.0", "2", "")] == ["1.*", "1.*.0", "2", ROOT]
    assert names.owner("optimizer_state", "1.0.weight.exp_avg") == "1.*"
    assert names.owner("activations", "1.0") == ""


def test_the_backward_pass_belongs_to_the_module_that_made_it():
    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(running.name)
            return gradient

    running, seen, value = RunningModule(), [], torch.ones(1, requires_grad=True)
    for name in ("first", "second", ""):
        running.mark(name)
        value = Seen.apply(value)
    value.backward()
    assert seen == [LOSS, "second", "first"]
    with torch.no_grad():
        assert running.name == NO_MODULE
