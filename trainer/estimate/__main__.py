"""Estimate the memory of a job and print it as JSON.

WORLD_SIZE=64 python -m trainer.estimate --config FILE [--section.key value ...]
"""

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch

from trainer.config import JobConfig, load
from trainer.config.mesh import model_parts
from trainer.config.shape import ModelArgs
from trainer.errors import TrainerError
from trainer.estimate.rehearsal import NUMBER_SIGN, LocalProblem, join_fake, local_problem, window_peaks
from trainer.estimate.tracker import Peak
from trainer.models.decoder import build_model, model_args
from trainer.parallel.data_parallel import EXPERTS_DIM
from trainer.parallel.pipeline import keep_part

FORK = multiprocessing.get_context("fork")


class Case(NamedTuple):
    """A memory estimate to make: for data-parallel rank `rank` in pipeline stage `stage`.

    `alike` data-parallel ranks of that stage need the same memory; the result holds for all of them.
    """

    local: LocalProblem
    args: ModelArgs
    stage: int
    rank: int
    alike: int


def estimate(config: JobConfig, world_size: int) -> dict[str, object]:
    """Return the estimate as a dict: model, mesh, assumptions, and the memory of each group of ranks in bytes.

    All ranks of a group need the same memory, so only one rank per group is estimated.

    Raises:
        ConfigError: There is no such model, or the mesh does not fit the world size.
    """
    local = local_problem(config, world_size)
    args = model_args(config)
    return {
        "world_size": world_size,
        "mesh": local.degrees.described(),
        "model": f"{config.model.name} {config.model.flavor}",
        "parameters": sum(parameter.numel() for parameter in build_model(config).parameters()),
        "layers": args.n_layers,
        "assumptions": list(local.notes),
        "ranks": in_processes(
            Case(local, args, stage, rank, count)
            for stage in range(local.degrees.pp)
            for rank, count in distinct_ranks(local, stage)
        ),
    }


def in_processes(cases: Iterable[Case]) -> list[dict[str, object]]:
    """Return the memory of each case; each is computed in a new process, because DTensor caches process groups.

    The processes are forked from this thread, while no other thread runs. A process pool would fork from its own
    threads and lose errors.
    """
    waiting, answers = iter(cases), list[dict[str, object]]()
    while started := [start(case) for case in islice(waiting, os.cpu_count() or 1)]:
        answers += map(answer, started)
    return answers


def start(case: Case) -> Connection:
    """Start the process that computes one case; return the end of the pipe from which its result can be read."""
    receiving, sending = FORK.Pipe(duplex=False)
    FORK.Process(target=send, args=(sending, case), daemon=True).start()
    # Otherwise the pipe would stay open if the process died, and reading from it would never end.
    sending.close()
    return receiving


def send(sending: Connection, case: Case) -> None:
    """Compute the memory of one case; send the result, or the error, through the pipe `sending`."""
    torch.set_num_threads(1)  # the threads of OpenMP are not there after a fork
    gc.freeze()  # to look for garbage among torch's own objects takes a sixth of the time
    try:
        sending.send(rank_memory(case))
    except TrainerError as error:
        sending.send(error)


def answer(receiving: Connection) -> dict[str, object]:
    """Return the estimate of one case, which the process of the case sends through the pipe.

    Raises:
        TrainerError: The case cannot be estimated, or the process ended without an answer.
    """
    try:
        answer = receiving.recv()
    except EOFError as error:
        raise TrainerError(
            "the process that estimates a rank ended without an answer", "its error message is printed above"
        ) from error
    if isinstance(answer, TrainerError):
        raise answer
    return dict(answer)


def rank_memory(case: Case) -> dict[str, object]:
    """Return the memory of the ranks of one case, in bytes.

    The dict has the peaks of all windows, where a window is a part of the step. It also has the highest peak, with its
    window and its categories.
    """
    local = case.local
    world = join_fake(local, case.rank, case.stage)
    peaks = highest_passes(window_peaks(local.config, world, case.args))
    highest = max(peaks, key=lambda name: peaks[name].total)
    return {
        "first_rank": (case.stage * local.ranks + case.rank) * local.degrees.tp,
        "count": case.alike * local.degrees.tp,
        "peak_bytes": peaks[highest].total,
        "peak_window": highest,
        "categories": peaks[highest].categories,
        "modules": peaks[highest].modules,
        "windows": {name: peak.total for name, peak in peaks.items()},
    }


def highest_passes(peaks: dict[str, Peak]) -> dict[str, Peak]:
    """Return {window of a step: its highest peak over all passes through the pipeline}.

    A window is a part of a step. In `peaks`, each pass has a window of its own: `bwd -1 #0.2` is the window `bwd -1` of
    the second pass through the rank's model part 0.
    """
    highest: dict[str, Peak] = {}
    for name, peak in peaks.items():
        window, *_ = name.partition(NUMBER_SIGN)
        highest[window] = max(highest.get(window, peak), peak, key=lambda peak: peak.total)
    return highest


def distinct_ranks(local: LocalProblem, stage: int) -> list[tuple[int, int]]:
    """Return the data-parallel ranks to estimate, each as (rank, number of ranks that it represents).

    If the rows of every parameter can be divided evenly among the ranks, all ranks need the same memory, and one rank
    is returned. Otherwise two ranks are returned. One has the largest shards, and also represents ranks with medium
    shards; the other has the smallest shards. With context parallelism, the last rank of those that share a sequence is
    estimated, because it attends to the whole sequence.
    """
    shards, tensor = local.degrees.sharding, local.degrees.tp
    copies, first = local.degrees.dp_replicate, local.degrees.cp - 1
    pieces = list(sharded_rows(local, stage))
    rows = [[rows_on_rank(piece, rank * tensor) for piece in pieces] for rank in range(shards)]
    smallest = sum(row == rows[-1] for row in rows)
    if smallest == shards:
        return [(first, shards * copies)]
    return [(first, (shards - smallest) * copies), (shards - 1, smallest * copies)]


class ShardedRows(NamedTuple):
    """The `size` rows of a parameter, which are divided into `shards` shards.

    Each group of `neighbours` consecutive ranks, such as the ranks of tensor parallelism, has the same shard.
    """

    size: int
    shards: int
    neighbours: int = 1


def sharded_rows(local: LocalProblem, stage: int) -> Iterator[ShardedRows]:
    """Yield a `ShardedRows` for each parameter of a pipeline stage that is sharded by rows."""
    config, tensor = local.config, local.degrees.tp
    shards, experts = local.degrees.sharding, local.degrees.ep
    for part in model_parts(stage, model_args(config).n_layers, config.parallelism):
        for parameter in keep_part(build_model(config), part).parameters():
            if parameter.dim() < EXPERTS_DIM:
                yield ShardedRows(len(parameter), shards, tensor)
            elif experts > 1 and len(parameter) >= shards * tensor:
                yield ShardedRows(len(parameter) // experts, shards * tensor // experts, experts)
            elif len(parameter) >= shards:
                yield ShardedRows(len(parameter), shards, tensor)


def rows_on_rank(piece: ShardedRows, rank: int) -> int:
    """Return the number of rows of the sharded parameter `piece` on rank `rank`.

    FSDP gives the first ranks equally many rows; the last ranks may have fewer or none. Example: 10 rows over 4 ranks
    are 3, 3, 3, 1; 5 rows over 4 ranks are 2, 2, 1, 0.
    """
    largest_share = -(-piece.size // piece.shards)
    return min(max(piece.size - rank // piece.neighbours * largest_share, 0), largest_share)


def main() -> None:
    try:
        config = load(None, sys.argv[1:])
        print(json.dumps(estimate(config, int(os.environ.get("WORLD_SIZE", "1")))))
    except TrainerError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
