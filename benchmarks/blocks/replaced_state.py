"""Measure whether weights, gradients and optimizer state keep their category when a script replaces their tensors.

    python -m benchmarks.blocks.replaced_state [NAME ...] [--wrong]

Each job trains a small model on the CPU for six recorded steps and replaces tensors as scripts do: out-of-place
updates, swaps with an average of the weights, casts, offloading, loaded checkpoints, new optimizers. At its end, the
job lists the true category of each storage that it holds. Two answers are compared with that list: what our recorder
wrote, and what the rules guess when its tags, steps and phases are removed. Prints the bytes with the right category,
and the findings about memory that is freed late.
"""

import argparse
import pickle
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import nn

from analyzers import memory, store
from analyzers.memory.categorise import categorise
from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import READER
from analyzers.memory.snapshot import CATEGORIES, Snapshot
from benchmarks.blocks.categories import without_notes
from workbench.recorders.memory.recorder import MemoryRecorder

STEPS, WIDTH, BATCH = 6, 256, 32
HIDDEN_ASIDE = (
    "weights_clipped",
    "state_loaded",
    "layer_added",
    "gradients_in_buckets",
    "weights_swapped_in_training",
    "state_quantised",
    "weights_requantised",
)
"""Jobs that were kept back while the rules were made."""


class Model(nn.Module):
    """Two linear layers around a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x)).relu())
        return out


class Job:
    """A model and its optimizer; `step` is the number of the current step."""

    def __init__(self) -> None:
        self.model: nn.Module = Model()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0

    def pass_through(self) -> None:
        loss = self.model(torch.randn(BATCH, WIDTH)).square().mean()
        loss.backward()

    def update(self) -> None:
        self.optimizer.step()

    def train(self) -> None:
        """Run one step; subclasses override it."""
        self.optimizer.zero_grad()
        self.pass_through()
        self.before_update()
        self.update()
        self.after_update()

    def before_update(self) -> None: ...

    def after_update(self) -> None: ...

    def truth(self) -> dict[int, str]:
        """Return {address of a storage: its true category} of all storages that the job holds."""
        found: dict[int, str] = {}

        def add(tensor: torch.Tensor, kind: str) -> None:
            if tensor.numel() > 1:
                found.setdefault(tensor.untyped_storage().data_ptr(), kind)

        for parameter in self.model.parameters():
            add(parameter.data, "parameters")
            if parameter.grad is not None:
                add(parameter.grad, "gradients")
        for buffer in self.model.buffers():
            add(buffer, "parameters")
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    add(value, "optimizer_state")
        return found


class Plain(Job):
    pass


class WeightsReplaced(Job):
    def after_update(self) -> None:
        for parameter in self.model.parameters():
            parameter.data = parameter.data * 0.999


class WeightsReplacedOnce(Job):
    def after_update(self) -> None:
        if self.step == 4:
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()


class WeightsClipped(Job):
    def after_update(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.data = parameter.clamp(-1, 1)


class AverageSwapped(Job):
    """Evaluates with averaged weights: swaps them in, and then swaps the trained weights back."""

    def __init__(self) -> None:
        super().__init__()
        self.average = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def after_update(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter.detach(), 0.1)
        if self.step % 2 == 0:
            trained = {name: parameter.data for name, parameter in self.model.named_parameters()}
            for name, parameter in self.model.named_parameters():
                parameter.data = self.average[name].clone()
            with torch.no_grad():
                self.model(torch.randn(BATCH, WIDTH))
            for name, parameter in self.model.named_parameters():
                parameter.data = trained[name]


class WeightsSwappedInTraining(Job):
    """Lookahead optimizer: every second step replaces the weights by the mean of old and new weights."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = [parameter.detach().clone() for parameter in self.model.parameters()]

    def after_update(self) -> None:
        if self.step % 2 == 0:
            self.slow = [(old + new.detach()) / 2 for old, new in zip(self.slow, self.model.parameters(), strict=True)]
            for parameter, slow in zip(self.model.parameters(), self.slow, strict=True):
                parameter.data = slow.clone()


class CastAndBack(Job):
    def after_update(self) -> None:
        if self.step == 4:
            self.model.bfloat16()
            self.model.float()


class CastEveryStep(Job):
    def train(self) -> None:
        self.model.bfloat16()
        self.optimizer.zero_grad()
        self.model(torch.randn(BATCH, WIDTH, dtype=torch.bfloat16)).square().mean().backward()
        self.model.float()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.float()
        self.update()


class StateOffloaded(Job):
    """Moves the optimizer's state to other memory after each step, and back before the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.away: dict[tuple[torch.Tensor, str], bytes] = {}

    def before_update(self) -> None:
        for (parameter, key), content in self.away.items():
            values = torch.empty(parameter.shape)
            values.numpy()[...] = np.frombuffer(content, np.float32).reshape(parameter.shape)
            self.optimizer.state[parameter][key] = values

    def after_update(self) -> None:
        if self.step == STEPS:
            return
        for parameter, state in self.optimizer.state.items():
            for key in ("exp_avg", "exp_avg_sq"):
                self.away[parameter, key] = state[key].numpy().tobytes()
                state[key] = torch.zeros(1)


class StateReloadedInHelper(Job):
    """Loads the optimizer's state back after each step, in a separate function."""

    def after_update(self) -> None:
        reload_state(self.optimizer)


def reload_state(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"], state["exp_avg_sq"] = state["exp_avg"].clone(), state["exp_avg_sq"].clone()


class StateLoaded(Job):
    def after_update(self) -> None:
        if self.step == 4:
            self.optimizer.load_state_dict(deepcopy(self.optimizer.state_dict()))


class WeightsLoaded(Job):
    def after_update(self) -> None:
        if self.step == 4:
            state = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(state, assign=True)
            self.optimizer.param_groups[0]["params"] = list(self.model.parameters())


class OptimizerNew(Job):
    def after_update(self) -> None:
        if self.step == 3:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)


class LayerAdded(Job):
    def after_update(self) -> None:
        if self.step == 3:
            self.model.add_module("extra", nn.Linear(WIDTH, WIDTH))
            extra = self.model.get_submodule("extra")
            self.optimizer.add_param_group({"params": list(extra.parameters())})
            self.model.register_forward_hook(lambda _module, _inputs, output: extra(output))


class EmbeddingResized(Job):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(1000, WIDTH), Model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def pass_through(self) -> None:
        self.model(torch.randint(0, 1000, (BATCH,))).square().mean().backward()

    def after_update(self) -> None:
        if self.step == 3:
            old = self.model[0].weight
            self.model[0].weight = nn.Parameter(torch.cat([old.detach(), torch.randn(24, WIDTH)]))
            self.optimizer.state.pop(old)
            self.optimizer.param_groups[0]["params"][0] = self.model[0].weight


class LoraMerged(Job):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = torch.randn(8, WIDTH), torch.randn(WIDTH, 8)

    def after_update(self) -> None:
        if self.step in (3, 5):
            layer = self.model.get_submodule("first")
            layer.weight.data = layer.weight.data + 1e-4 * self.up @ self.down


class GradientsReplaced(Job):
    def before_update(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad / max(1.0, float(parameter.grad.norm()))


class GradientsInBuckets(Job):
    """Copies gradients into a single flat buffer; after that the gradients are views of it."""

    def before_update(self) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.flat = torch.cat([gradient.flatten() for gradient in gradients])
        start = 0
        for parameter in self.model.parameters():
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


class StateReplacedInStep(Job):
    """Uses an optimizer of the script that creates new tensors for its averages in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = Momentum(self.model.parameters())


class Momentum(torch.optim.Optimizer):
    """An optimizer whose momentum is replaced rather than updated in place."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 1e-3})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    old = self.state[parameter].get("average", torch.zeros_like(parameter))
                    self.state[parameter]["average"] = 0.9 * old + parameter.grad
                    parameter.sub_(self.state[parameter]["average"], alpha=group["lr"])


class StateQuantised(Job):
    """Keeps the averages in bfloat16 between steps."""

    def before_update(self) -> None:
        for state in self.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].float()

    def after_update(self) -> None:
        for state in self.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].bfloat16()


class WeightsRequantised(Job):
    """Keeps a rounded copy of a weight in a buffer, which each step creates again."""

    def __init__(self) -> None:
        super().__init__()
        self.model.register_buffer("rounded", torch.zeros(WIDTH, WIDTH, dtype=torch.int8))

    def after_update(self) -> None:
        weight = self.model.get_submodule("first").weight.detach()
        self.model.rounded = (weight * 127).round().to(torch.int8)


def snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


JOBS: dict[str, type[Job]] = {snake(kind.__name__): kind for kind in (Plain, *Job.__subclasses__())}


def record(make: Callable[[], Job], folder: Path) -> tuple[Path, dict[int, str]]:
    """Run a job, and return the path of its snapshot and {address: true category} at its end."""
    torch.manual_seed(0)
    job = make()
    recorder = MemoryRecorder(folder, job.model, job.optimizer, freq=STEPS, window=STEPS + 1)
    with recorder.step(0):
        """The first recorded step has no Python frames, so it is an empty one."""
    for step in range(1, STEPS + 1):
        with recorder.step(step):
            job.step = step
            job.train()
    truth = job.truth()
    recorder.close()
    return next(folder.rglob("*.pickle")), truth


def right_bytes(path: Path, truth: dict[int, str], show: bool) -> tuple[int, int]:
    """Return (bytes with the right category, all bytes) of the storages in `truth`, at the end of the trace."""
    replay = Replay(Snapshot(store.load([path], READER)).device(0))
    lives, category = replay.lifetimes, categorise(replay).category
    rows = lives.alive(len(replay.trace) - 1)
    right = total = 0
    for row in rows.tolist():
        wanted = truth.get(int(lives.addr[row]))
        if wanted is None:
            continue
        size, found = int(lives.size[row]), CATEGORIES[category[row]]
        total += size
        right += size * (found == wanted)
        if show and found != wanted:
            print(f"      {size:>9} B: {wanted}, called {found}")
    return right, total


def hidden(path: Path, folder: Path) -> Path:
    with path.open("rb") as stream:
        raw = pickle.load(stream)
    without_notes(raw)
    target = folder / "hidden" / path.name
    target.parent.mkdir()
    target.write_bytes(pickle.dumps(raw, protocol=4))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--wrong", action="store_true", help="print each block whose category is wrong")
    parser.add_argument("--aside", action="store_true", help="only the jobs that were kept back")
    args = parser.parse_args()
    names = args.names or [name for name in JOBS if (name in HIDDEN_ASIDE) == args.aside]
    sums = np.zeros((2, 2), np.int64)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path, truth = record(JOBS[name], Path(folder))
            for form, file in enumerate((path, hidden(path, Path(folder)))):
                right, total = right_bytes(file, truth, args.wrong)
                sums[form] += right, total
                late = late_findings(file)
                print(
                    f"{name:<28}{('recorded', 'guessed')[form]:<10}{right / total:8.1%}  {'; '.join(late)}", flush=True
                )
    for form, (right, total) in zip(("recorded", "guessed"), sums.tolist(), strict=True):
        print(f"{'all':<28}{form:<10}{right / total:8.1%} of {total} bytes")


def late_findings(path: Path) -> list[str]:
    """Return the titles of findings about memory that is freed late."""
    return [f.title for f in memory.analyze(path).findings if f.id == "memory.late_state"]


if __name__ == "__main__":
    sys.exit(main())
