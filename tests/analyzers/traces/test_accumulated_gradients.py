"""A gradient that autograd accumulates belongs to the module of its parameter, which the size of the gradient shows."""

import json
import subprocess
import sys

import pytest

from analyzers.columns import UnsavedColumns
from analyzers.traces import digest
from analyzers.traces.allocations import AttributedAllocations, allocators
from analyzers.traces.columns import work_of_accounts
from analyzers.traces.costs import Attribution
from analyzers.traces.reading.trace import Trace

JOB = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(11, 21), nn.Tanh(), nn.Linear(21, 12))
        self.norm, self.last = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x):
        return self.last(self.norm(checkpoint(self.inner, x, use_reentrant=False)))

model = Network()
options = {"record_shapes": True, "with_stack": True, "with_modules": True, "profile_memory": True}
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiler:
    for _ in range(2):
        model(torch.randn(4, 11)).square().mean().backward()
profiler.export_chrome_trace(sys.argv[1])
"""
MODULES = {
    (21, 11): "Linear_0", (21,): "Linear_0", (12, 21): "Linear_1", (3, 12): "Linear_2", (3,): "Linear_2",
    (12,): {"Linear_1", "LayerNorm_0"},
}  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "rank0_trace.json"
    subprocess.run([sys.executable, "-c", JOB, path], check=True, capture_output=True)
    return Trace(UnsavedColumns(*digest.read([path])))


def test_gradients_have_the_module_of_their_parameter(trace):
    [allocator] = allocators(trace)
    attributed = AttributedAllocations(allocator, Attribution(work_of_accounts(trace)[0]))
    module, c = attributed.module_around(), trace.columns
    shapes = dict(zip(c["shape_row"].tolist(), c["shape_text"].tolist(), strict=True))
    rows = [
        row for row, name in enumerate(c["name"].tolist()) if trace.names[name] == "torch::autograd::AccumulateGrad"
    ]
    assert len(rows) == 2 * 8
    for row in rows:
        [size] = json.loads(c.meta["shapes"][shapes[row]].split("\0")[0])
        assert trace.names[c["name"][module[row]]].removeprefix("nn.Module: ") in MODULES[tuple(size)]
