"""`workbench estimate --script`, for scripts that know nothing of us."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from analyzers.errors import InputError
from workbench.commands.estimate import estimate_script
from workbench.documents import EstimateData, RankMemory
from workbench.errors import UsageProblem
from workbench.launch.plan import Request

ROOT = Path(__file__).parents[3]
WIDE = 512
LOOP = f"""
import torch
from torch import nn
model = nn.Sequential(nn.Linear({WIDE}, {WIDE}), nn.ReLU(), nn.Linear({WIDE}, {WIDE})).cuda()
optimizer = torch.optim.Adam(model.parameters())
best = 1e9
for number in range(9):
    x = torch.randn(16, {WIDE}).to("cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    EXTRA
"""
WEIGHTS = 4 * 2 * (WIDE * WIDE + WIDE)


def rehearsed(folder: Path, code: str, *arguments: str, nproc: int | None = None) -> EstimateData:
    path = folder / "train.py"
    path.write_text(code)
    return estimate_script(path, arguments, Request(nproc=nproc), "cuda", None).data


def sums_of_modules(rank: RankMemory) -> dict[str, int]:
    return dict(sum((Counter(held) for held in rank.modules.values()), Counter()))


@pytest.mark.slow
def test_a_device_that_is_not_there_is_counted(tmp_path: Path) -> None:
    data = rehearsed(tmp_path, LOOP.replace("EXTRA", "print(loss.item(), f'{loss:.2f}')"))
    [rank] = data.ranks
    assert (data.device, data.steps, data.parameters) == ("cuda:0", 2, WEIGHTS // 4)
    assert rank.categories["parameters"] == rank.categories["gradients"] == WEIGHTS
    assert rank.categories["optimizer_state"] == 2 * WEIGHTS
    assert sum(rank.categories.values()) == rank.peak_bytes
    assert rank.peak_line.endswith("train.py:10")
    assert sums_of_modules(rank) == rank.categories
    assert "read at" in data.assumptions[0]


@pytest.mark.slow
def test_what_a_script_does_beside_training(tmp_path: Path) -> None:
    """It compiles, saves, compares a loss, copies its model and imports a module with the name of one of ours."""
    (tmp_path / "trainer.py").write_text("LIMIT = 5.0\n")
    extra = f"""
    if loss < trainer.LIMIT: best = loss.item()
    torch.save(model.state_dict(), {str(tmp_path / "best.pt")!r})"""
    start = "import copy, trainer, torch\n" + LOOP.replace("EXTRA", extra)
    code = start.replace("best = 1e9", "average = copy.deepcopy(model); model = torch.compile(model)")
    data = rehearsed(tmp_path, code)
    assert data.ranks[0].categories["parameters"] == 2 * WEIGHTS
    assert not (tmp_path / "best.pt").exists()
    assert any("no compilation" in text for text in data.assumptions)


@pytest.mark.slow
def test_copies_of_a_model_have_buckets(tmp_path: Path) -> None:
    code = LOOP.replace("EXTRA", "print(torch.distributed.get_world_size())").replace(
        "optimizer =",
        "torch.distributed.init_process_group('nccl')\n"
        "model = nn.parallel.DistributedDataParallel(model, device_ids=[0])\noptimizer =",
    )
    data = rehearsed(tmp_path, code, nproc=4)
    assert data.world_size == data.ranks[0].count == 4
    assert data.ranks[0].categories["communication"] == WEIGHTS


ATTENTION_ON_CPU = """
import torch
from torch import nn
layer = nn.Linear(32, 32)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    q = layer(torch.randn(4, 4, 128, 32))
    keys = q[:, KEYS]
    nn.functional.scaled_dot_product_attention(q, keys, keys, OPTIONS).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "options"), [(":", "is_causal=True"), (":", "None, 0.0, True"), (":2", "scale=0.5, enable_gqa=True")]
)
def test_attention_that_stays_on_the_cpu_beside_a_device(tmp_path: Path, keys: str, options: str) -> None:
    """PyTorch's attention on the CPU takes its last two options by name only."""
    data = rehearsed(tmp_path, ATTENTION_ON_CPU.replace("KEYS", keys).replace("OPTIONS", options))
    assert (data.device, data.steps) == ("cpu", 2)
    assert data.ranks[0].peak_bytes > 2 * 4 * (32 * 32 + 32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (LOOP.replace("model(x).square()", "model(x)[model(x) > 0]"), "train.py:9: the size of a result depends on"),
        (LOOP.replace("torch.randn(16,", "torch.randn(16, 2 *"), "train.py:9: RuntimeError"),
        ("import sys; sys.exit('no data')", "train.py:1: the script ended: no data"),
        ("print('nothing to train')", "ended before an optimizer made a step"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(tmp_path: Path, code: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        rehearsed(tmp_path, code)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("script", "request_", "device", "says"),
    [
        ("train.py", Request(config="x.toml"), "cuda", "--config"),
        ("train.py", Request(), "tpu", "no such kind of device"),
    ],
)
def test_options_that_contradict_each_other(script: str, request_: Request, device: str, says: str) -> None:
    with pytest.raises(UsageProblem, match=says):
        estimate_script(Path(script), (), request_, device, None)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such script"):
        estimate_script(tmp_path / "train.py", (), Request(), "cuda", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["custom_function", "accumulation", "distill", "ppo", "moe_routing", "moe_switch", "moe_one_hot"]
)
def test_the_peak_of_a_real_run_is_foreseen(name: str) -> None:
    measured = [sys.executable, "-W", "ignore", "-m", "benchmarks.scripts", name]
    line, *_ = subprocess.run(measured, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert abs(float(line.split()[-1].rstrip("%"))) < 0.5, line


def test_the_workspace_of_a_recurrent_layer_is_asked_of_the_library() -> None:
    """The rehearsal has as many bytes as the library really keeps, also of a sequence that is too long to be run."""
    import torch

    from trainer.estimate.script.tensors import LONGEST, LSTM, workspace_bytes

    for length, width, bidirectional in ((5, 16, False), (3 * LONGEST, 24, True)):
        layer = torch.nn.LSTM(width, width, bidirectional=bidirectional)
        x = torch.zeros(length, 2, width)
        state = torch.zeros(2, width)
        weights = [getattr(layer, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        numbers = (False, [], 2, width, 1, True, False, False, True)
        kept = LSTM(x, *weights, state, state, *numbers)[3].numel()
        shapes = tuple((tuple(one.shape), one.dtype) for one in (x, *weights, state, state))
        assert workspace_bytes(shapes, (False, (), *numbers[2:])) == pytest.approx(
            kept, rel=0.01 if bidirectional else 0
        )


def test_packed_sequences_without_values_have_the_sizes_of_real_ones() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainer.estimate.script.tensors import packed

    lengths = torch.tensor([5, 3, 1])
    real = torch.nn.utils.rnn.pack_padded_sequence(torch.zeros(3, 5, 8), lengths, batch_first=True)
    with FakeTensorMode():
        rows, batch_sizes = packed(torch.zeros(3, 5, 8), lengths, batch_first=True)
    assert rows.shape == real.data.shape
    assert batch_sizes.tolist() == real.batch_sizes.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "within"), [("lstm_text", 1e-3), ("bilstm_packed", 0.03)])
def test_recurrent_layers_of_a_real_script(name: str, within: float) -> None:
    """The peak that accuracy.md has for the script, measured by our recorder."""
    measured = {"lstm_text": 75_983_348, "bilstm_packed": 72_420_192}[name]
    path = ROOT / "benchmarks" / "scripts" / "recurrent" / f"{name}.py"
    [rank] = estimate_script(path, (), Request(), "cpu", None).data.ranks
    assert rank.peak_bytes == pytest.approx(measured, rel=within)
