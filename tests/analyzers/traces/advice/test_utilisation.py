"""Operations and utilisation, compared with PyTorch's own counter, with and without activation checkpointing."""

import json
import subprocess
import sys

import pytest

from analyzers import store, traces

JOB = """
import json, sys, torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.conv = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16), torch.nn.Conv1d(16, 16, 3)
    def forward(self, x):
        q, k, v = self.qkv(x).view(4, 10, 3, 2, 8).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(4, 10, 16)
        return F.pad(self.conv(self.out(x).mT), (1, 1)).mT

# Of the fused attention on a CPU PyTorch counts nothing.
torch.backends.cuda.enable_flash_sdp(False)
layers = [Block() for _ in range(3)]
said = torch.randn(4, 10, 16)

def step(again):
    x = said.clone().requires_grad_()
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=again == "reentrant") if again else layer(x)
    x.sum().backward()

told = {}
for again in ("", "early", "reentrant"):
    step(again)
    with FlopCounterMode(display=False) as counter:
        step(again)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        step(again)
    recorder.export_chrome_trace(again + ".json")
    told[again] = counter.get_total_flops()
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flops")
    (folder / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "job.py"], capture_output=True, text=True, check=True, cwd=folder
    )
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("again", ["", "early", "reentrant"])
def test_operations_are_those_that_pytorch_counts(job, maker, again):
    folder, told = job
    [found] = maker.accounts((folder / f"{again}.json").read_bytes())
    assert (found.flops, found.recomputed_flops) == (told[again], told[again] - told[""])


def test_utilisation_leaves_out_what_is_done_again(job, maker):
    folder, told = job
    artefact = maker.artefact(folder / "reentrant.json")
    [unknown] = traces.analyze([artefact]).data.ranks
    assert (unknown.mfu, unknown.hfu) == (None, None)
    [found] = traces.analyze([artefact], store.Options(peak_flops=1e6)).data.ranks
    assert found.hfu == pytest.approx(told["reentrant"] / found.span_ns * 1e9 / 1e6, rel=1e-3)
    assert found.mfu / found.hfu == pytest.approx(told[""] / told["reentrant"], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "tera"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA L4", 121), ("Abacus 9", None)],
)
def test_the_peak_is_that_of_the_device(maker, name, tera):
    made = maker.Tracing()
    made.step(1, 0, 2_000_000)
    shapes = {"Input Dims": [[1000, 1000], [1000, 1000]], "Input type": ["c10::BFloat16"] * 2, "Concrete Inputs": []}
    made.event("aten::mm", "cpu_op", 0, 50, **shapes)
    made.kernel("gemm", 100, 1_000_000, launch=(10, 9))
    text = made.text().replace(
        b'"deviceProperties": []', b'"deviceProperties": [{"id": 0, "name": "%b"}]' % name.encode()
    )
    [found] = traces.analyze([maker.save(text)]).data.ranks
    assert found.mfu == (None if tera is None else pytest.approx(2e9 / 2e-3 / (tera * 1e12), rel=1e-3))
