"""Check that `workbench bisect` names the planted difference of two runs: python -m benchmarks.bisection [--cost].

Each case is a small script that runs twice, the second time with a change, and what an engineer would want to be told.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from analyzers import parity
from workbench.recorders import record_tensors

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH, STEPS = 64, 32, 4, 16, 4, 3


class Change(NamedTuple):
    """The settings that a run changes; the defaults change nothing."""

    scale: float = 1.0
    seed_of_noise: int = 0
    seed_of_data: int = 0
    seed_of_labels: int = 0
    rate: float = 1e-2
    clip: float = 1e9
    model: Callable[[nn.Module], object] | None = None
    optimizer: Callable[[torch.optim.Optimizer], object] | None = None
    steps: int = STEPS
    microbatches: int = 1
    reorder: bool = False
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    factor: float = 1.0


class Expected(NamedTuple):
    """The expected cause, step and words of the answer; the cause `equal` means that nothing differs."""

    cause: str
    step: int = 1
    words: str = ""


class Attention(nn.Module):
    """Causal attention whose scale can be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.scale = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), 1.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scale = self.scale * (WIDTH // HEADS) ** -0.5
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A transformer block, which may run in another precision."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.drop = nn.LayerNorm(WIDTH), Attention(), nn.Dropout(0.0)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.half = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            x = x + self.drop(self.attention(self.norm(x)))
            return x + self.ffn(x)


class Model(nn.Module):
    """A language model of three blocks; all share the activation function `act`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(3))
        self.act = nn.Tanh()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.layers:
            x = self.act(block(x))
        return self.head(x)  # type: ignore[no-any-return]


def train(folder: Path, change: Change, state: dict[str, object] | None = None, first: int = 1) -> dict[str, object]:
    """Run a recorded loop, and return the state of model and optimizer after it; `state` resumes such a loop."""
    torch.manual_seed(0)
    model = Model().to(change.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), change.rate)
    if state:
        model.load_state_dict(state["model"])  # type: ignore[arg-type]
        if "optimizer" in state:
            optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
    for apply, to in ((change.model, model), (change.optimizer, optimizer)):
        if apply:
            apply(to)  # type: ignore[arg-type]
    recorder = record_tensors(model, folder, first_step=first)
    try:
        for step in range(first, first + change.steps):
            torch.manual_seed(change.seed_of_noise * 1000 + step)
            inputs, labels = batch(step, change)
            for part in range(change.microbatches):
                rows = slice(part, None, change.microbatches)
                with torch.autocast("cpu", torch.bfloat16, enabled=change.autocast):
                    logits = model(inputs[rows])
                loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels[rows].flatten())
                (loss * change.factor / change.microbatches).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), change.clip)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        recorder.close()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def batch(step: int, change: Change) -> tuple[Tensor, Tensor]:
    """Return (inputs, labels) of a step, (B, T) int64 each."""
    random = torch.Generator().manual_seed(change.seed_of_data * 1000 + step)
    inputs = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=random)
    random.manual_seed(change.seed_of_labels * 1000 + step + 500)
    labels = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=random)
    return (inputs.flip(0), labels.flip(0)) if change.reorder else (inputs, labels)


def in_layer(number: int, attribute: str, value: object) -> Callable[[nn.Module], None]:
    """Return a change of an attribute of a block, such as `attention.scale`."""

    def change(model: nn.Module) -> None:
        owner, _, name = attribute.rpartition(".")
        setattr(model.get_submodule(f"layers.{number}{'.' * bool(owner)}{owner}"), name, value)

    return change


def dropout(model: nn.Module) -> None:
    """Switch the dropout of all blocks on."""
    for number in range(3):
        in_layer(number, "drop.p", 0.1)(model)


def new_weights(model: nn.Module) -> None:
    """Draw the weights of one layer again."""
    nn.init.normal_(model.get_parameter("layers.1.ffn.0.weight"), std=0.3)


def poison(model: nn.Module) -> None:
    """Make one module return NaN."""
    model.get_submodule("layers.1.ffn").register_forward_hook(lambda _, __, output: output * float("nan"))


def wrong_backward(model: nn.Module) -> None:
    """Halve the gradient that flows through one module."""

    def hook(_: nn.Module, __: object, output: Tensor) -> Tensor:
        return output.detach() * 0.5 + output * 0.5

    model.get_submodule("layers.1.ffn.1").register_forward_hook(hook)


def wrong_weight_gradient(model: nn.Module) -> None:
    """Double the gradient of one weight."""
    model.get_parameter("layers.2.attention.out.weight").register_hook(lambda gradient: gradient * 2)


def half_layer(model: nn.Module) -> None:
    """Run one block in bfloat16."""
    in_layer(1, "half", True)(model)


def slower(optimizer: torch.optim.Optimizer) -> None:
    """Set the weight decay to zero."""
    optimizer.param_groups[0]["weight_decay"] = 0.0


NOISY = Change(model=dropout)
CASES: dict[str, tuple[Change, Change, Expected]] = {
    "the same run twice": (Change(), Change(), Expected("equal")),
    "dropout with another seed": (NOISY, NOISY._replace(seed_of_noise=1), Expected("module", 1, "layers.0.drop")),
    "one layer has other weights": (
        Change(),
        Change(model=new_weights),
        Expected("weights", 1, "layers.1.ffn.0.weight"),
    ),
    "eps of a norm": (Change(), Change(model=in_layer(2, "norm.eps", 1e-2)), Expected("module", 1, "layers.2.norm")),
    "one block in bfloat16": (Change(), Change(model=half_layer), Expected("precision", 1, "layers.1")),
    "scale of attention": (
        Change(),
        Change(model=in_layer(1, "attention.scale", 1.1)),
        Expected("between", 1, "layers.1.attention"),
    ),
    "learning rate": (Change(), Change(rate=2e-2), Expected("optimizer", 1, "learning rate")),
    "order of the data": (Change(), Change(seed_of_data=1), Expected("data", 1)),
    "other labels": (Change(), Change(seed_of_labels=1), Expected("loss", 1, "labels")),
    "gradients are clipped": (Change(), Change(clip=0.1), Expected("weight_gradient", 1)),
    "order within a batch": (Change(), Change(reorder=True), Expected("data", 1)),
    "all in autocast": (Change(), Change(autocast=True), Expected("precision", 1)),
}
KEPT_BACK: dict[str, tuple[Change, Change, Expected]] = {
    "not a number": (Change(), Change(model=poison), Expected("module", 1, "layers.1.ffn")),
    "gradient lost in a module": (Change(), Change(model=wrong_backward), Expected("backward", 1, "layers.1.ffn")),
    "gradient of a weight": (
        Change(),
        Change(model=wrong_weight_gradient),
        Expected("weight_gradient", 1, "layers.2.attention.out.weight"),
    ),
    "weight decay": (Change(), Change(optimizer=slower), Expected("optimizer", 1, "weight_decay")),
    "microbatches": (Change(), Change(microbatches=2), Expected("equal")),
    "scale of the loss": (Change(), Change(factor=2.0), Expected("loss", 1)),
}
RESUMED = {
    "a resume that goes on": ((), Expected("equal")),
    "a resume without the optimizer": (("optimizer",), Expected("optimizer", 3, "state")),
}


def answer(a: Change, b: Change) -> parity.BisectReport:
    """Train once with each of the two changes, and return the report of the bisection on both runs."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder, "a"), a)
        train(Path(folder, "b"), b)
        return parity.bisect(Path(folder, "a"), Path(folder, "b"))


def answer_resumed(lost: tuple[str, ...]) -> parity.BisectReport:
    """Compare a run of four steps with a run that resumes after step 2 without the parts `lost` of the state."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder, "a"), Change(steps=4))
        state = train(Path(folder, "start"), Change(steps=2))
        kept = {key: value for key, value in state.items() if key not in lost}
        train(Path(folder, "b"), Change(steps=2), kept, 3)
        return parity.bisect(Path(folder, "a"), Path(folder, "b"))


def is_right(report: parity.BisectReport, expected: Expected) -> bool:
    """Return whether a report says what is expected."""
    first = report.data.first
    if first is None or expected.cause == "equal":
        return report.verdict.kind == expected.cause
    text = " ".join([report.verdict.sentence, *(f"{one.why} {one.next}" for one in report.findings)])
    return (first.cause, first.step) == (expected.cause, expected.step) and expected.words in text


def measure_cost() -> None:
    """Print the processor time of a step without and with the recorder, in turns, and the size of its lines."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)))
    optimizer, times = torch.optim.AdamW(model.parameters()), ([], [])  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(20):
            recorder = record_tensors(model, folder, steps=1) if turn % 2 else None
            started = time.process_time()
            model(torch.randn(8, 128, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            times[turn % 2].append(time.process_time() - started)
            if recorder:
                recorder.close()
        size = Path(folder, "values", "rank_0.jsonl").stat().st_size
    without, recorded = (statistics.median(each[2:]) for each in times)
    print(f"{without:.3f} s a step without, {recorded:.3f} s with: {recorded / without:.2f} times; {size} bytes a step")


def main() -> None:
    """Print the answer to each case, and how many are right."""
    if "--cost" in sys.argv:
        measure_cost()
        return
    for title, cases in (("cases", CASES), ("kept back", KEPT_BACK)):
        if title == "kept back" and "--all" not in sys.argv:
            continue
        answers = {name: (answer(a, b), expected) for name, (a, b, expected) in cases.items()}
        if title == "cases":
            answers |= {name: (answer_resumed(lost), expected) for name, (lost, expected) in RESUMED.items()}
        for name, (report, expected) in answers.items():
            print("right" if is_right(report, expected) else "WRONG", "|", name, "|", report.verdict.sentence)
        print(title, sum(is_right(*each) for each in answers.values()), "of", len(answers))


if __name__ == "__main__":
    main()
