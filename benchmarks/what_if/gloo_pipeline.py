"""Train a pipeline of layers that sleep, on gloo, and write a trace of each rank.

Run by torchrun. Arguments: the folder for the traces, and the stage whose layers take twice as long (-1: none). A layer
sleeps instead of computing, so that its time does not depend on how busy the processors are.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import ProfilerActivity, profile, schedule

FORWARD_S = 0.010
MICROBATCHES, STEPS, WIDTH = 6, 3, 8


@torch.library.custom_op("sleeping::forward", mutates_args=())
def forward(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


@torch.library.custom_op("sleeping::backward", mutates_args=())
def backward(gradient: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(2 * seconds)
    return gradient.clone()


@forward.register_fake
def _(x: torch.Tensor, seconds: float) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def keep_seconds(ctx: Any, inputs: tuple[torch.Tensor, float], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.seconds = inputs[1]


forward.register_autograd(
    lambda ctx, gradient: (backward(gradient, ctx.seconds), None),
    setup_context=keep_seconds,
)


class Layer(torch.nn.Module):
    """A layer that sleeps for `seconds` forward and for twice as long backward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return forward(x * self.weight, self.seconds)


def main(folder: Path, slow: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layer = Layer(FORWARD_S * (2 if rank == slow else 1))
    pipeline = Schedule1F1B(
        PipelineStage(layer, rank, world, torch.device("cpu")),
        MICROBATCHES,
        loss_fn=lambda output, target: (output - target).pow(2).mean(),
    )
    batch = torch.randn(MICROBATCHES, WIDTH)
    steps = schedule(wait=1, warmup=1, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
        for _ in range(2 + STEPS):
            pipeline.step(*[batch] * (rank == 0), **({"target": batch} if rank == world - 1 else {}))
            dist.all_reduce(torch.ones(1))
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]), int(sys.argv[2]))
