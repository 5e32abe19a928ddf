"""Training jobs of other kinds than the trainer's, to test the rules of memory categories.

    python -m benchmarks.blocks.foreign_jobs FOLDER

Each job writes FOLDER/NAME with the snapshot of its last step and its exact categories, for
`benchmarks/blocks/categories.py FOLDER/*`.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from workbench.recorders.memory.recorder import MemoryRecorder

STEPS, WIDTH, WORDS = 4, 192, 1000


class ConvNet(nn.Module):
    """Residual blocks with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Experts(nn.Module):
    """A mixture of experts: each token goes to one of four."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            out[mine] = expert(x[mine]) * weight[mine].unsqueeze(-1)
        return x + out


class Layer(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.inner = inner or nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.inner(x)


class Language(nn.Module):
    """A decoder. With `tied`, embedding and output share a weight; with `again`, layers are recomputed in the
    backward pass.
    """

    def __init__(self, layers: Iterable[nn.Module], *, tied: bool = False, again: bool = False) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(layers)
        self.output, self.again = nn.Linear(WIDTH, WORDS, bias=False), again
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return self.output(x)


class Hourglass(nn.Module):
    """A U-Net with skip connections, whose output goes through a frozen network to compute the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.GroupNorm(4, 32), nn.SiLU())
        self.low = nn.Sequential(nn.Conv2d(32, 64, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1))
        self.up = nn.ConvTranspose2d(64, 10, 4, 2, 1)
        self.judge = nn.Sequential(nn.Conv2d(10, 256, 3, padding=1), nn.ReLU()).requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        out = self.up(torch.cat([high, self.low(high)], 1))
        return out.mean((2, 3)) + self.judge(out).mean((1, 2, 3)).unsqueeze(1)


class Recurrent(nn.Module):
    """Two layers of gated recurrent units."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cells = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, 2, batch_first=True)
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.cells(self.embedding(tokens))[0])


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank correction that is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.lora_a = nn.Parameter(torch.randn(8, base.in_features) * 0.01)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T


def adapted() -> nn.Module:
    model = Language(Layer() for _ in range(3))
    model.requires_grad_(requires_grad=False)
    for layer in model.layers:
        layer.inner[1], layer.inner[3] = Adapter(layer.inner[1]), Adapter(layer.inner[3])
    return model


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = Language(Layer() for _ in range(4))
    for module in (*model.layers, model):
        fully_shard(module).set_force_sum_reduction_for_comms(True)
    return model


def compiled() -> nn.Module:
    model = Language(Layer() for _ in range(3))
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    return model


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def propagated(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=1e-4)


def pictures() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, 32, 32), torch.randint(10, (8,))


def text() -> tuple[Tensor, Tensor]:
    rows = torch.randint(WORDS, (4, 65))
    return rows[:, :-1], rows[:, 1:]


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.optim.Optimizer], Callable, int]] = {
    "convnet": (ConvNet, momentum, pictures, 1),
    "experts": (lambda: Language(Layer(Experts()) for _ in range(3)), adam, text, 1),
    "tied": (lambda: Language((Layer() for _ in range(3)), tied=True), adam, text, 1),
    "lora": (adapted, adam, text, 1),
    "accumulation": (lambda: Language(Layer() for _ in range(3)), momentum, text, 4),
    "recomputed": (lambda: Language((Layer() for _ in range(4)), again=True), adam, text, 1),
    "compiled": (compiled, adam, text, 1),
    "fsdp2": (sharded, adam, text, 1),
    "hourglass": (Hourglass, propagated, pictures, 1),
    "recurrent": (Recurrent, adam, text, 2),
}


def train(name: str, folder: str) -> None:
    build, choose, data, batches = JOBS[name]
    torch.manual_seed(len(name))
    model = build()
    optimizer = choose(model)
    memory = MemoryRecorder(folder, model, optimizer, freq=STEPS)
    for number in range(1, STEPS + 1):
        with memory.step(number):
            for _ in range(batches):
                with memory.phase("data_wait"):
                    inputs, labels = data()
                with memory.phase("fwd"):
                    loss = functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
                with memory.phase("bwd"):
                    (loss / batches).backward()
            with memory.phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
    memory.close()


def main(folder: str) -> None:
    for name in JOBS:
        agent = ["-m", "torch.distributed.run", "--nproc_per_node", "2"] if name == "fsdp2" else []
        subprocess.run([sys.executable, *agent, __file__, name, str(Path(folder, name))], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        train(*sys.argv[1:])
