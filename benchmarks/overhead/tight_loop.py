"""Measure what the recorders add to a step of a tight loop, in processor time of all threads.

    python benchmarks/overhead/tight_loop.py [--blocks 150] [--steps 100] [--messages] [--profile FILE]

A process trains a small model on gloo, some 400 us a step, with everything that `recorders.start` records by default.
In turn, the hooks of the recorders are taken out for a block of steps and put back for the next. Two processes would
not do: how their memory is laid out makes a difference of 50 us. What the threads of the recorders use is added, as
they run all the time. Exits with 1 if the recorders add more than 50 us to a step.

Other programs on the same cores make each instruction slower, those of the recorders more than others, because the
steps evict their code from the caches. So the result is the difference between the lower deciles of the blocks with and
without recorders; the median of the differences is printed, too.

With `--messages`, each step also broadcasts a tensor, whose root is recorded. With `--profile FILE`, the steps with
recorders are profiled with cProfile.
"""

import argparse
import cProfile
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim import optimizer as optim

from workbench import recorders

ALLOWED_US = 50.0
TASKS = Path("/proc/self/task")
PROCESS_GROUP = dist.ProcessGroup
WRAPPED = ("send", "recv", "recv_anysource", "broadcast", "reduce", "gather", "scatter")
HOOKS = (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)  # noqa: SLF001


class Switch:
    """Takes the hooks of the recorders out of this process, and puts them back; to be created before they start."""

    def __init__(self) -> None:
        self._off = self._state()
        self._on = self._off

    def started(self) -> None:
        """Remember what the recorders have put into this process."""
        self._on = self._state()

    def set(self, *, on: bool) -> None:
        """Put the hooks of the recorders in place, or take them out."""
        backward, methods, hooks, callbacks = self._on if on else self._off
        torch.autograd._engine_run_backward = backward  # noqa: SLF001
        for name, method in methods.items():
            setattr(PROCESS_GROUP, name, method)
        for kind, known in zip(HOOKS, hooks, strict=True):
            kind.clear()
            kind.update(known)
        gc.callbacks[:] = callbacks

    def _state(self) -> tuple[Callable[..., None], dict[str, object], list[dict[int, object]], list[object]]:
        methods = {name: vars(PROCESS_GROUP)[name] for name in WRAPPED}
        backward = torch.autograd._engine_run_backward  # noqa: SLF001
        return backward, methods, [dict(kind) for kind in HOOKS], list(gc.callbacks)


def training(*, broadcasts: bool) -> Callable[[int], None]:
    """Return a function that trains for a number of steps."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data, message = torch.ones(2, 64), torch.ones(4)

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = model(data).sum()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            if broadcasts:
                dist.broadcast(message, 0)
            optimizer.step()

    return run


def cost_us(run: Callable[[int], None], steps: int) -> float:
    """Return the microseconds of processor time a step, of all threads of the process."""
    started = time.process_time_ns()
    run(steps)
    return (time.process_time_ns() - started) / steps / 1e3


def threads_us(earlier: set[Path]) -> float:
    """Return the microseconds of processor time that the threads of the recorders have used so far.

    They are all but the main thread and those that were there before, in `earlier`.
    """
    return sum(int((task / "schedstat").read_text().split()[0]) for task in set(TASKS.iterdir()) - earlier) / 1e3


def main() -> None:
    """Print the cost of a step without and with recorders, and what they add."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=150)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--messages", action="store_true")
    parser.add_argument("--profile")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    run, switch, profiler = training(broadcasts=asked.messages), Switch(), cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder:
        earlier = set(TASKS.iterdir())
        recorders.start(folder, steps=True)
        switch.started()
        run(500)
        began_us, costs = threads_us(earlier), dict[bool, list[float]]({True: [], False: []})
        for block in range(asked.blocks):
            for on in (block % 2 == 0, block % 2 == 1):
                switch.set(on=on)
                if asked.profile and on:
                    profiler.enable()
                costs[on].append(cost_us(run, asked.steps))
                profiler.disable()
        threads = (threads_us(earlier) - began_us) / (2 * asked.blocks * asked.steps)
        switch.set(on=True)
        dist.destroy_process_group()
    if asked.profile:
        profiler.dump_stats(asked.profile)
    recorded, plain = (statistics.quantiles(costs[on], n=10)[0] for on in (True, False))
    added = recorded - plain + threads
    pairs = [on - off + threads for on, off in zip(costs[True], costs[False], strict=True)]
    lower, median, upper = statistics.quantiles(pairs, n=4)
    print(
        f"a step takes {plain:.0f} us of processor time; the recorders add {added:.1f} us"
        f" ({1 + added / plain:.2f} times), {threads:.1f} us of it in threads of their own;"
        f" median of {asked.blocks} pairs of {asked.steps} steps:"
        f" {median:.1f} us, half of them between {lower:.1f} and {upper:.1f} us"
    )
    sys.exit(added > ALLOWED_US)


if __name__ == "__main__":
    main()
