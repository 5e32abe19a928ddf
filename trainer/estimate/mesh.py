"""Turns meshes that this trainer cannot train on into a problem of data-parallel ranks that can be rehearsed."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from trainer.config import ConfigError, JobConfig
from trainer.config.sections import Compile, Parallelism
from trainer.models.decoder import model_args


@dataclass(frozen=True)
class LocalProblem:
    """What is rehearsed in place of a job: `config` on `ranks` ranks of data parallelism.

    Each of them stands for `tensor` ranks; `context` neighbours share a sequence; each of the `stages` of a pipeline
    has such ranks.
    """

    config: JobConfig
    ranks: int
    mesh: dict[str, int] = field(default_factory=dict)
    tensor: int = 1
    context: int = 1
    stages: int = 1
    notes: tuple[str, ...] = ()


def local_problem(config: JobConfig, world_size: int) -> LocalProblem:
    """Return the rehearsal for a job of `world_size` ranks.

    Ranks that share a sequence have 1/cp of its positions, and shard the weights like data parallelism.

    Raises:
        ConfigError: There is no such model, its parts do not divide, or the degrees do not multiply to the world size.
    """
    parallelism = config.parallelism
    tensor, context, stages = (
        parallelism.tensor_parallel_degree,
        parallelism.context_parallel_degree,
        parallelism.pipeline_parallel_degree,
    )
    replicate, shard = data_parallel(config, world_size, tensor * context * stages)
    mesh = {
        "dp_replicate": replicate, "dp_shard": shard, "cp": context, "tp": tensor, "pp": stages,
        "ep": parallelism.expert_parallel_degree,
    }  # fmt: skip
    divide(shard * context * tensor, parallelism.expert_parallel_degree, "ranks that share one copy by ep")
    if stages > 1:
        divide(config.training.local_batch_size, parallelism.pipeline_parallel_microbatch_size, "batch by microbatch")
    divide(model_args(config).n_kv_heads, tensor, "key-value heads by tp")
    training = replace(config.training, seq_len=divide(config.training.seq_len, context, "seq_len by cp"))
    divide(training.seq_len, tensor, "positions by tp")
    data_parallelism = replace(
        parallelism, data_parallel_replicate_degree=replicate, data_parallel_shard_degree=shard * context,
        tensor_parallel_degree=1, context_parallel_degree=1,
        fsdp_reshard_after_forward=reshard_policy(parallelism),
    )  # fmt: skip
    local_config = replace(config, training=training, parallelism=data_parallelism, compile=Compile())
    ranks, notes = replicate * shard * context, tuple(assumptions(config))
    return LocalProblem(local_config, ranks, mesh, tensor, context, stages, notes)


def reshard_policy(parallelism: Parallelism) -> Literal["default", "always", "never"]:
    """Return when gathered weights are freed.

    In a pipeline they stay, because every microbatch would gather them again.
    """
    policy = parallelism.fsdp_reshard_after_forward
    return "never" if policy == "default" and parallelism.pipeline_parallel_degree > 1 else policy


def data_parallel(config: JobConfig, world_size: int, others: int) -> tuple[int, int]:
    """Return (dp_replicate, dp_shard) beside `others` ranks of the other dimensions; -1 takes what remains.

    Raises:
        ConfigError: The degrees do not multiply to the world size.
    """
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


def divide(size: int, parts: int, what: str) -> int:
    """Return `size` / `parts`.

    Raises:
        ConfigError: It does not divide evenly.
    """
    if size % parts:
        raise ConfigError(f"{what}: {size} is not a multiple of {parts}", "change one of the two")
    return size // parts


def assumptions(config: JobConfig) -> list[str]:
    """Return what the estimate assumes because the trainer does not have it."""
    parallelism = config.parallelism
    assumed = {
        "tensor parallelism is estimated as PyTorch does it, with sequence parallelism and a split vocabulary; the"
        " trainer has none, but the estimate was within 2 % of what such ranks allocated":
            parallelism.tensor_parallel_degree > 1,
        "context parallelism is estimated as ring attention that gathers keys and values, without load balancing; the"
        " trainer has none, but the estimate was within 1 % of what such ranks allocated":
            parallelism.context_parallel_degree > 1,
        "pipeline parallelism is estimated with PyTorch's schedules, and layers divided as in torchtitan; the trainer"
        " has none, but the estimate was within 3 % of what such ranks allocated":
            parallelism.pipeline_parallel_degree > 1,
        "all experts get equally many tokens; in a run the router decides":
            hasattr(model_args(config), "n_experts"),
        "no compilation; compiled code keeps fewer activations": config.compile.enable,
        f"no converters ({', '.join(config.model.converters)})": bool(config.model.converters),
    }  # fmt: skip
    return [text for text, applies in assumed.items() if applies]
