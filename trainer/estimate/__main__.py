"""Estimate: WORLD_SIZE=64 python -m trainer.estimate --config FILE [--section.key value ...]. Prints JSON."""

import json
import os
import sys
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn

from trainer.config import JobConfig, load
from trainer.errors import TrainerError
from trainer.estimate.depth import windows
from trainer.estimate.mesh import Local, local_problem
from trainer.estimate.rehearsal import join_fake
from trainer.models.decoder import build_model, model_args


def estimate(config: JobConfig, world_size: int) -> dict[str, Any]:
    """What each rank of a job would hold, in bytes.

    Raises:
        ConfigError: There is no such model, or the mesh does not fit the world size.
    """
    local = local_problem(config, world_size)
    args = model_args(config)
    model = build_model(config)
    return {
        "world_size": world_size,
        "mesh": local.mesh,
        "model": f"{config.model.name} {config.model.flavor}",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": args.n_layers,
        "assumptions": list(local.notes),
        "ranks": [held(local, args, first, count) for first, count in distinct(model, local)],
    }


def held(local: Local, args: Any, rank: int, count: int) -> dict[str, Any]:
    """What `count` ranks that are like `rank` hold."""
    world = join_fake(local.config, rank, local.ranks, local.tensor)
    stage = replace(args, n_layers=-(-args.n_layers // local.stages))
    found = {name: dict(peak.categories) for name, peak in windows(local.config, world, stage).items()}
    dist.destroy_process_group()
    highest = max(found, key=lambda name: sum(found[name].values()))
    return {
        "first_rank": rank * local.tensor,
        "count": count * local.tensor * local.stages,
        "peak_bytes": sum(found[highest].values()),
        "peak_window": highest,
        "categories": found[highest],
        "windows": {name: sum(categories.values()) for name, categories in found.items()},
    }


def distinct(model: nn.Module, local: Local) -> list[tuple[int, int]]:
    """(first rank, how many are like it): the largest shards, and where rows do not divide the smallest.

    Ranks between the two hold no more than the first.
    """
    shards = local.config.parallelism.data_parallel_shard_degree
    copies = local.ranks // shards
    rows = [
        [min(max(len(p) - rank * -(-len(p) // shards), 0), -(-len(p) // shards)) for p in model.parameters()]
        for rank in range(shards)
    ]
    smallest = sum(row == rows[-1] for row in rows)
    if smallest == shards:
        return [(0, shards * copies)]
    return [(0, (shards - smallest) * copies), (shards - 1, smallest * copies)]


def main() -> None:
    try:
        config = load(None, sys.argv[1:])
        print(json.dumps(estimate(config, int(os.environ.get("WORLD_SIZE", "1")))))
    except TrainerError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
