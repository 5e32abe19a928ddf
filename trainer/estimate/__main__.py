"""Estimate: WORLD_SIZE=64 python -m trainer.estimate --config FILE [--section.key value ...]. Prints JSON."""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from trainer.config import JobConfig, load
from trainer.errors import TrainerError
from trainer.estimate.depth import windows
from trainer.estimate.mesh import Local, local_problem
from trainer.estimate.pipeline import cut, parts_of
from trainer.estimate.rehearsal import APART, join_fake
from trainer.estimate.tracker import Peak
from trainer.models.decoder import build_model, model_args
from trainer.parallel.data_parallel import EXPERTS_DIM

FORK = multiprocessing.get_context("fork")


def estimate(config: JobConfig, world_size: int) -> dict[str, Any]:
    """What each rank of a job would hold, in bytes.

    Raises:
        ConfigError: There is no such model, or the mesh does not fit the world size.
    """
    local = local_problem(config, world_size)
    args = model_args(config)
    return {
        "world_size": world_size,
        "mesh": local.mesh,
        "model": f"{config.model.name} {config.model.flavor}",
        "parameters": sum(parameter.numel() for parameter in build_model(config).parameters()),
        "layers": args.n_layers,
        "assumptions": list(local.notes),
        "ranks": apart((local, args, stage, *like) for stage in range(local.stages) for like in distinct(local, stage)),
    }


def apart(cases: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Each in a process of its own: DTensor goes on with what it knows of a group after that was destroyed.

    The processes are forked here, where no other thread of ours runs; a pool forks from its threads, and loses errors.
    """
    waiting, found = iter(cases), list[dict[str, Any]]()
    while started := [start(case) for case in islice(waiting, os.cpu_count() or 1)]:
        found += map(answer, started)
    return found


def start(case: tuple[Any, ...]) -> Connection:
    receiving, sending = FORK.Pipe(duplex=False)
    FORK.Process(target=send, args=(sending, case), daemon=True).start()
    sending.close()
    return receiving


def send(sending: Connection, case: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)  # the threads of OpenMP are not there after a fork
    try:
        sending.send(held(*case))
    except TrainerError as error:
        sending.send(error)


def answer(receiving: Connection) -> dict[str, Any]:
    """What a process found.

    Raises:
        TrainerError: It cannot be estimated, or the process ended without an answer.
    """
    try:
        found = receiving.recv()
    except EOFError as error:
        raise TrainerError("a rank's rehearsal broke off", "its last words stand above") from error
    if isinstance(found, TrainerError):
        raise found
    return dict(found)


def held(local: Local, args: Any, stage: int, rank: int, count: int) -> dict[str, Any]:
    """What `count` ranks hold that are like rank `rank` of data parallelism in a stage."""
    world = join_fake(local, rank, stage)
    found = merged(windows(local.config, world, args))
    highest = max(found, key=lambda name: found[name].total)
    return {
        "first_rank": (stage * local.ranks + rank) * local.tensor,
        "count": count * local.tensor,
        "peak_bytes": found[highest].total,
        "peak_window": highest,
        "categories": found[highest].categories,
        "windows": {name: peak.total for name, peak in found.items()},
    }


def merged(found: dict[str, Peak]) -> dict[str, Peak]:
    """The highest of the passes of a pipeline for each window."""
    highest: dict[str, Peak] = {}
    for name, peak in found.items():
        window, *_ = name.partition(APART)
        highest[window] = max(highest.get(window, peak), peak, key=lambda one: one.total)
    return highest


def distinct(local: Local, stage: int) -> list[tuple[int, int]]:
    """(first rank, how many are like it): the largest shards, and where rows do not divide the smallest.

    Ranks between the two hold no more than the first. Of those that share a sequence the last attends to all of it.
    """
    shards = local.config.parallelism.data_parallel_shard_degree
    copies, first = local.ranks // shards, local.context - 1
    pieces = list(sharded(local, stage))
    rows = [[rows_of(piece, rank * local.tensor) for piece in pieces] for rank in range(shards)]
    smallest = sum(row == rows[-1] for row in rows)
    if smallest == shards:
        return [(first, shards * copies)]
    return [(first, (shards - smallest) * copies), (shards - 1, smallest * copies)]


class Cut(NamedTuple):
    """`size` rows, dealt out to `shards` ranks, of which `each` neighbours have rows of the same place."""

    size: int
    shards: int
    each: int = 1


def sharded(local: Local, stage: int) -> Iterator[Cut]:
    """How the parameters of a stage are cut."""
    config, tensor = local.config, local.tensor
    shards, experts = config.parallelism.data_parallel_shard_degree, config.parallelism.expert_parallel_degree
    for part in parts_of(stage, model_args(config).n_layers, config.parallelism):
        for parameter in cut(build_model(config), part).parameters():
            if parameter.dim() < EXPERTS_DIM:
                yield Cut(len(parameter), shards, tensor)
            elif experts > 1 and len(parameter) >= shards * tensor:
                yield Cut(len(parameter) // experts, shards * tensor // experts, experts)
            elif len(parameter) >= shards:
                yield Cut(len(parameter), shards, tensor)


def rows_of(piece: Cut, rank: int) -> int:
    """Rows of a parameter that a rank has, as FSDP deals them out: from the front, the last ranks may have none."""
    most = -(-piece.size // piece.shards)
    return min(max(piece.size - rank // piece.each * most, 0), most)


def main() -> None:
    try:
        config = load(None, sys.argv[1:])
        print(json.dumps(estimate(config, int(os.environ.get("WORLD_SIZE", "1")))))
    except TrainerError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
