"""Data parallelism: DDP copies the model to every rank, FSDP2 shards it, HSDP copies the shards."""

from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from trainer.config import JobConfig
from trainer.config.degrees import EXPERT
from trainer.config.sections import Parallelism
from trainer.models.decoder import Decoder
from trainer.models.moe import moe_layers
from trainer.parallel.mesh import World
from workbench.recorders.memory.tensor_hooks import local_tensor

EXPERTS_DIM = 3
"""Dimensions of the weights of experts, and of no others."""


class Policies(NamedTuple):
    """In which types FSDP computes and reduces, and where it keeps the shards."""

    precision: MixedPrecisionPolicy
    offload: OffloadPolicy


def apply_fsdp(model: Decoder, world: World, config: JobConfig) -> None:
    """Shard each block, then what remains.

    A mesh of two dimensions copies along the first and shards along the second.
    """
    assert world.data
    training = config.training
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, training.mixed_precision_param),
        reduce_dtype=getattr(torch, training.mixed_precision_reduce),
    )
    # Only a device copies from pinned memory faster.
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if world.degrees.offload else OffloadPolicy()
    policies = Policies(policy, offload)
    when = reshard_policy(config.parallelism)
    reshard = when != "never"
    for block in model.layers.values():
        if world.experts:
            shard_experts(block, world.experts, policies, reshard=reshard)
        shard(block, world.data, policies, reshard=reshard)
    shard(model, world.data, policies, reshard=when == "always")


def reshard_policy(parallelism: Parallelism) -> str:
    """Return when gathered weights are freed.

    In a pipeline they stay, because every microbatch would gather them again.
    """
    policy = parallelism.fsdp_reshard_after_forward
    return "never" if policy == "default" and parallelism.pipeline_parallel_degree > 1 else policy


def shard_experts(block: nn.Module, mesh: DeviceMesh, policies: Policies, *, reshard: bool) -> None:
    """Shard a rank's experts over the ranks that have the same ones.

    Their gradients come from the tokens of all ranks.
    """
    names = tuple(name for name in mesh.mesh_dim_names or () if name != EXPERT)
    for moe in moe_layers(block):
        shard(moe.experts, mesh[names], policies, reshard=reshard).set_gradient_divide_factor(mesh.size())


def shard(module: nn.Module, mesh: DeviceMesh, policies: Policies, *, reshard: bool) -> FSDPModule:
    """Shard one module over the mesh."""
    ranks = mesh.size(-1)
    sharded = fully_shard(
        module,
        mesh=mesh,
        mp_policy=policies.precision,
        offload_policy=policies.offload,
        reshard_after_forward=reshard,
        shard_placement_fn=partial(shard_dimension, ranks),
    )
    if mesh.device_type == "cpu" and ranks > 1:
        # Otherwise FSDP asks for PREMUL_SUM, which gloo does not have. Over one rank it asks for nothing.
        sharded.set_force_sum_reduction_for_comms(True)
    return sharded


def shard_dimension(ranks: int, parameter: nn.Parameter) -> Shard | None:
    """Return the dimension that a parameter is sharded along, or None for the first.

    Experts are sharded along their second dimension if some ranks would get none along the first.
    """
    few = len(local_tensor(parameter)) < ranks
    return Shard(1) if parameter.dim() == EXPERTS_DIM and few else None


def apply_ddp(model: Decoder, mesh: DeviceMesh) -> None:
    """Average the gradients over `mesh` while the backward pass runs. The parameters must have memory already."""
    replicate(model, device_mesh=mesh, bucket_cap_mb=100)
