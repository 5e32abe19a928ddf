"""Check that `recorders.check_finite` names the planted origin of a NaN: python -m benchmarks.not_finite.

Each case is a small script's loop with one fault, and what an engineer would want to be told; healthy loops must give
no answer. `--cost` measures what the check adds to a step.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.recorders import check_finite

WIDTH, STEPS = 16, 5


class Case(NamedTuple):
    """A loop to run, and words that the kind, operation, module and inputs of the answer must have; None: no answer."""

    run: Callable[[Path], None]
    kind: str | None
    operation: str = ""
    module: str = ""
    step: int = 1


def perceptron(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return a model of three layers."""
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)).to(dtype)


def train(model: nn.Module, folder: Path, loss: Callable[[int], Tensor], optimizer: Any = None) -> None:
    """Run a few steps of a loop under `check_finite`; `loss` is called with the number of each step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    check = check_finite(model, folder)
    try:
        for step in range(1, STEPS + 1):
            loss(step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    finally:
        check.close()


def nan_in_parameter(folder: Path) -> None:
    model = perceptron()

    def loss(step: int) -> Tensor:
        if step == 3:
            with torch.no_grad():
                model[2].weight.data.view(-1)[5] = float("nan")
        return model(torch.randn(8, WIDTH)).square().mean()

    train(model, folder, loss)


def nan_in_batch(folder: Path) -> None:
    model = perceptron()
    data = [torch.randn(8, WIDTH) for _ in range(STEPS)]
    data[1].numpy()[3, 2] = float("nan")
    train(model, folder, lambda step: model(data[step - 1]).square().mean())


def log_of_zero(folder: Path) -> None:
    model = nn.Sequential(perceptron(), nn.ReLU())

    def loss(_: int) -> Tensor:
        scores = model(torch.randn(8, WIDTH))
        return -torch.log(scores / (scores.sum(-1, keepdim=True) + 1)).mean()

    train(model, folder, loss)


def overflow_in_half(folder: Path) -> None:
    model = perceptron(torch.float16)
    train(model, folder, lambda step: model(torch.full((8, WIDTH), 6.5e4 if step == 2 else 1.0).half()).float().mean())


def infinite_gradient(folder: Path) -> None:
    model = perceptron()
    train(model, folder, lambda _: torch.sqrt((model(torch.randn(8, WIDTH)) * 0).square().sum(-1)).mean())


def exploding_lr(folder: Path) -> None:
    model = perceptron()
    train(
        model, folder, lambda _: model(torch.randn(8, WIDTH)).square().mean(), torch.optim.SGD(model.parameters(), 1e19)
    )


class Standardise(nn.Module):
    """A custom norm without an epsilon."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def custom_norm(folder: Path) -> None:
    model = nn.Sequential(Standardise(), perceptron())
    train(
        model, folder, lambda step: model(torch.ones(8, WIDTH) if step == 2 else torch.randn(8, WIDTH)).square().mean()
    )


class Attention(nn.Module):
    """Attention whose mask is written with infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf"))
        return torch.softmax(scores, -1) @ v


def causal_attention(folder: Path) -> None:
    model = Attention()
    mask = torch.ones(8, 8).triu(1).bool()
    bias = torch.zeros(8, 8).masked_fill(mask, float("-inf"))

    def loss(step: int) -> Tensor:
        x = torch.randn(2, 8, WIDTH)
        scores = model.qkv(x)[..., :8] + bias
        return model(x, mask).square().mean() + torch.softmax(scores, -1).square().mean() + 0 * step

    train(model, folder, loss, torch.optim.AdamW(model.parameters()))


def skipped_overflow(folder: Path) -> None:
    """Train like with a loss scaler, which skips the update after an overflow and goes on."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    check = check_finite(model, folder)
    for step in range(1, STEPS + 1):
        model(torch.randn(8, WIDTH)).mean().mul(torch.inf if step == 2 else 1.0).backward()
        for parameter in model.parameters():
            if not parameter.grad.isfinite().all():
                parameter.grad.zero_()
        optimizer.step()
        optimizer.zero_grad()
    check.close()


def masked_row(folder: Path) -> None:
    model = Attention()
    mask = torch.ones(8, 8).triu(1).bool()
    padded = mask.clone()
    padded[3] = True
    train(model, folder, lambda step: model(torch.randn(2, 8, WIDTH), padded if step == 2 else mask).square().mean())


def overflow_in_exponential(folder: Path) -> None:
    model = perceptron()
    train(model, folder, lambda step: model(torch.randn(8, WIDTH)).add(200.0 if step == 4 else 0.0).exp().mean())


def division_in_optimizer(folder: Path) -> None:
    model = nn.Sequential(perceptron(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, foreach=False, fused=False)
    train(
        model, folder, lambda _: model[0](torch.randn(8, WIDTH)).square().mean() + 0 * model[1].weight.sum(), optimizer
    )


CASES = {
    "NaN in a parameter": Case(nan_in_parameter, "input|forward", "2.weight", "", 3),
    "NaN in the batch": Case(nan_in_batch, "input", "", "0", 2),
    "log(0) in the loss": Case(log_of_zero, "forward", "aten.log", ""),
    "overflow in float16": Case(overflow_in_half, "forward", "mm", "0", 2),
    "infinite gradient": Case(infinite_gradient, "backward", "", ""),
    "exploding learning rate": Case(exploding_lr, "forward|backward", "", "", 2),
    "division in a custom norm": Case(custom_norm, "forward", "aten.div", "0", 2),
    "finite run with masks": Case(causal_attention, None),
}
KEPT_BACK = {
    "fully masked row": Case(masked_row, "forward", "softmax", "", 2),
    "exp overflows": Case(overflow_in_exponential, "forward", "aten.exp", "", 4),
    "0/0 in the optimizer": Case(division_in_optimizer, "forward", "div", ""),
    "overflow that is skipped": Case(skipped_overflow, None),
}


def answer(case: Case) -> dict[str, Any] | None:
    """Run a case, and return the answer as it was written; None if there was none."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        case.run(Path(folder))
        path = Path(folder, "not_finite/rank_0.json")
        return json.loads(path.read_text()) if path.exists() else None


def is_right(case: Case, said: dict[str, Any] | None) -> bool:
    """Return whether an answer names the planted kind, operation, module and step."""
    if said is None or case.kind is None:
        return said is None and case.kind is None
    found = said["origin"]
    return (
        found is not None
        and said["step"] == case.step
        and found["kind"] in case.kind.split("|")
        and case.operation in found["operation"] + found["tensor"]
        and found["module"].startswith(case.module)
    )


def cost(width: int, layers: int, tokens: int) -> tuple[float, float]:
    """Return the median seconds of a step without and with the check."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True), layers)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, times = torch.randn(4, tokens, width), {True: [], False: []}  # type: dict[bool, list[float]]
    for number in range(8):
        check = check_finite(model, tempfile.gettempdir()) if number % 2 else None
        began = time.process_time()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times[bool(check)].append(time.process_time() - began)
        if check:
            check.close()
    return statistics.median(times[False]), statistics.median(times[True])


def main() -> None:
    """Print a line a case."""
    if "--cost" in sys.argv:
        for size in ((128, 4, 128), (512, 4, 256), (1024, 2, 256)):
            without, with_check = cost(*size)
            ratio = f"{without * 1e3:.0f} -> {with_check * 1e3:.0f} ms ({with_check / without:.2f})"
            print(f"width, layers, tokens {size}: {ratio}", flush=True)
        return
    for name, case in (KEPT_BACK if "--kept-back" in sys.argv else CASES).items():
        said = answer(case)
        shown = said and {key: said[key] for key in ("step", "seen_in", "origin")}
        print(f"{name:28} {'right' if is_right(case, said) else 'WRONG'}  {shown}")


if __name__ == "__main__":
    main()
