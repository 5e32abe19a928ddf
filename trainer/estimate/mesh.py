"""Meshes that this trainer cannot train on, as a problem of one rank that it can: what each dimension divides."""

import math
from dataclasses import dataclass, replace

from trainer.config import ConfigError, JobConfig
from trainer.config.sections import Compile


@dataclass(frozen=True)
class Local:
    """What is rehearsed in place of a job: `config` on `ranks` ranks, each of which `tensor` ranks split again."""

    config: JobConfig
    ranks: int
    mesh: dict[str, int]
    tensor: int = 1
    stages: int = 1
    notes: tuple[str, ...] = ()


def local_problem(config: JobConfig, world_size: int) -> Local:
    """The rehearsal for a job of `world_size` ranks.

    Tensor parallelism is rehearsed as it is. Context parallelism keeps 1/cp of the positions, and shards the weights
    like data parallelism; of a pipeline under 1F1B the first stage keeps as many microbatches as there are stages.

    Raises:
        ConfigError: The degrees do not multiply to the world size, or there is expert parallelism.
    """
    parallelism = config.parallelism
    if parallelism.expert_parallel_degree > 1:
        raise ConfigError("expert parallelism cannot be estimated", "there are no mixture-of-experts models here")
    tensor, context, stages = (
        parallelism.tensor_parallel_degree,
        parallelism.context_parallel_degree,
        parallelism.pipeline_parallel_degree,
    )
    replicate, shard = data_parallel(config, world_size, tensor * context * stages)
    mesh = {"dp_replicate": replicate, "dp_shard": shard, "cp": context, "tp": tensor, "pp": stages}
    training = replace(
        config.training,
        seq_len=divided(config.training.seq_len, context, "seq_len by cp"),
        local_batch_size=min(config.training.local_batch_size, stages)
        if stages > 1
        else config.training.local_batch_size,
        global_batch_size=-1 if stages > 1 else config.training.global_batch_size,
    )
    held = replace(
        parallelism, data_parallel_replicate_degree=replicate, data_parallel_shard_degree=shard * context,
        tensor_parallel_degree=1, context_parallel_degree=1, pipeline_parallel_degree=1,
    )  # fmt: skip
    plain = replace(config, training=training, parallelism=held, compile=Compile())
    ranks = replicate * shard * context
    return Local(plain, ranks, mesh, tensor, stages, tuple(assumptions(config)))


def data_parallel(config: JobConfig, world_size: int, others: int) -> tuple[int, int]:
    """(dp_replicate, dp_shard) beside `others` ranks of the other dimensions; -1 takes what remains."""
    replicate, shard = (
        config.parallelism.data_parallel_replicate_degree,
        config.parallelism.data_parallel_shard_degree,
    )
    if shard == -1:
        shard = max(world_size // (replicate * others), 1)
    if math.prod((replicate, shard, others)) != world_size:
        raise ConfigError(
            f"dp_replicate {replicate} x dp_shard {shard} x tp x cp x pp {others} is not {world_size} ranks",
            f"give --nproc {replicate * shard * others}, or change a degree",
        )
    return replicate, shard


def divided(size: int, parts: int, what: str) -> int:
    """Raises ConfigError where it does not divide."""
    if size % parts:
        raise ConfigError(f"{what}: {size} is no multiple of {parts}", "change one of them")
    return size // parts


def assumptions(config: JobConfig) -> list[str]:
    """What the estimate takes for granted because the trainer does not have it."""
    parallelism = config.parallelism
    asked = {
        "tensor parallelism as PyTorch lays it out, with sequence parallelism and a split vocabulary; the trainer has"
        " none, but ranks that did so came within 4 % (11 % with full recomputation)":
            parallelism.tensor_parallel_degree > 1,
        "context parallelism by division of the positions; blocks of keys and values that travel are not counted":
            parallelism.context_parallel_degree > 1,
        "pipeline parallelism by division of the layers: the first stage of 1F1B, microbatches of one sequence; the"
        " embedding and the output layer are both counted": parallelism.pipeline_parallel_degree > 1,
        "no compilation: compiled code keeps less": config.compile.enable,
        f"no converters ({', '.join(config.model.converters)})": bool(config.model.converters),
    }  # fmt: skip
    return [text for text, applies in asked.items() if applies]
