"""Data parallelism: DDP copies the model to every rank, FSDP2 shards it, HSDP copies the shards."""

import torch
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.config import JobConfig
from trainer.models.decoder import Decoder


def apply_fsdp(model: Decoder, mesh: DeviceMesh, config: JobConfig) -> None:
    """Shard each block, then what remains; a mesh of two dimensions copies along the first, shards along the second."""
    training = config.training
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, training.mixed_precision_param),
        reduce_dtype=getattr(torch, training.mixed_precision_reduce),
    )
    reshard = config.parallelism.fsdp_reshard_after_forward != "never"
    for block in model.layers.values():
        shard(block, mesh, policy, reshard=reshard)
    shard(model, mesh, policy, reshard=config.parallelism.fsdp_reshard_after_forward == "always")


def shard(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy, *, reshard: bool) -> None:
    sharded = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if mesh.device_type == "cpu":
        # Otherwise FSDP asks for PREMUL_SUM, which gloo does not have.
        sharded.set_force_sum_reduction_for_comms(True)


def apply_ddp(model: Decoder, mesh: DeviceMesh) -> None:
    """Average the gradients over `mesh` while the backward pass runs. Parameters must have memory already."""
    replicate(model, device_mesh=mesh, bucket_cap_mb=100)
