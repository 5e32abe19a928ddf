"""Data parallelism: DDP copies the model to every rank, FSDP2 shards it among ranks, HSDP copies the shards."""

from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate import replicate
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.config import JobConfig
from trainer.config.mesh import EXPERT, PIPELINE
from trainer.config.sections import Parallelism
from trainer.models.decoder import Decoder
from trainer.models.moe import Experts, moe_layers
from trainer.parallel.mesh import World
from workbench.recorders.memory.tensor_hooks import local_tensor

EXPERTS_DIM = 3
"""The number of dimensions of an expert's weights: experts, rows, columns. No other weight has three."""


class Policies(NamedTuple):
    """FSDP settings: the dtypes of computations and of gradient reduction, and whether shards are on the CPU."""

    precision: MixedPrecisionPolicy
    offload: OffloadPolicy


def apply_fsdp(model: Decoder, world: World, config: JobConfig) -> None:
    """Shard the model with FSDP: each block by itself, then all other parameters.

    On a two-dimensional mesh, weights are replicated along the first dimension and sharded along the second (HSDP).
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
    when = _reshard_policy(config.parallelism)
    reshard = when != "never"
    for block in model.layers.values():
        # Inner modules first: FSDP leaves out of a block the weights that are already sharded.
        if world.experts:
            _shard_experts(block, world.experts, policies, world.degrees.tp, reshard=reshard)
        shard(block, world.data, policies, reshard=reshard)
    # By default the output layer stays gathered, because the backward pass begins with it.
    shard(model, world.data, policies, reshard=when == "always")


def _reshard_policy(parallelism: Parallelism) -> str:
    """Return when FSDP frees gathered weights: "always", "never", or "default" (only the weights of blocks are freed).

    In a pipeline, "default" in the configuration becomes "never". Otherwise FSDP would gather the weights again for
    every microbatch.
    """
    policy = parallelism.fsdp_reshard_after_forward
    return "never" if policy == "default" and parallelism.pipeline_parallel_degree > 1 else policy


def _shard_experts(block: nn.Module, mesh: DeviceMesh, policies: Policies, tensor_ranks: int, *, reshard: bool) -> None:
    """Shard the experts of a block with FSDP over the ranks that hold the same experts.

    The gradients of experts are divided by the number of different batches in this pipeline stage. This is the number
    of its ranks divided by `tensor_ranks`, because the ranks of tensor parallelism share a batch.
    """
    present = mesh.mesh_dim_names or ()
    names = tuple(name for name in present if name not in (EXPERT, PIPELINE))
    ranks = mesh.size() // (mesh[PIPELINE].size() if PIPELINE in present else 1) // tensor_ranks
    for moe in moe_layers(block):
        shard(moe.experts, mesh[names], policies, reshard=reshard).set_gradient_divide_factor(ranks)


def shard(module: nn.Module, mesh: DeviceMesh, policies: Policies, *, reshard: bool) -> FSDPModule:
    """Shard a module over the mesh with FSDP; with `reshard`, gathered weights are freed after the forward pass."""
    ranks = mesh.size(-1)
    sharded = fully_shard(
        module,
        mesh=mesh,
        mp_policy=policies.precision,
        offload_policy=policies.offload,
        reshard_after_forward=reshard,
        shard_placement_fn=partial(_shard_dimension, ranks),
    )
    if mesh.device_type == "cpu" and ranks > 1:
        # Otherwise FSDP asks for PREMUL_SUM, which gloo does not have. Over one rank it asks for nothing.
        sharded.set_force_sum_reduction_for_comms(True)
    return sharded


def _shard_dimension(ranks: int, parameter: nn.Parameter) -> Shard | None:
    """Return the dimension along which FSDP shards a parameter: Shard(1), or None for dimension 0.

    Shard(1) is for weights of experts if this rank has fewer than `ranks` experts. Dimension 0 counts these experts, so
    some ranks would get none of them.
    """
    few = len(local_tensor(parameter)) < ranks
    return Shard(1) if parameter.dim() == EXPERTS_DIM and few else None


def apply_ddp(model: Decoder, mesh: DeviceMesh) -> None:
    """Wrap the model so that DDP averages gradients over `mesh` in the backward pass.

    Call this function after memory was allocated.
    """
    # Buckets as large as in torchtitan.
    replicate(model, device_mesh=mesh, bucket_cap_mb=100)


def apply_expert_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the experts of each mixture-of-experts layer among the ranks of `mesh`."""
    for moe in moe_layers(model):
        for name, weight in list(moe.experts.named_parameters()):
            # On the meta device, there are no values that rank 0 could send to the others.
            part = distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)
            moe.experts.register_parameter(name, nn.Parameter(part))
        Exchange(mesh.get_group()).attach(moe.experts)


class Exchange:
    """Hooks on the experts of a rank, which exchange tokens with all ranks of `group`.

    Before the experts run, a hook sends each token to the rank of its expert. After they have run, a hook sends the
    outputs back.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def attach(self, experts: Experts) -> None:
        experts.register_forward_pre_hook(self.dispatch)
        experts.register_forward_hook(self.combine)

    def dispatch(self, _: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Send this rank's tokens to the ranks of their experts; return (tokens for this rank's experts, counts).

        The returned tokens are sorted by expert; counts is the number of tokens of each expert. Example on rank 0 of 2,
        with 2 experts each: `counts_by_rank` [[2, 1], [0, 3]] means that rank 0 sends 2 and 1 tokens to experts 0 and
        1, and rank 1 sends 0 and 3. They arrive grouped by rank, for experts 0 0 1 and 1 1 1. A stable sort by expert
        then keeps the order within each rank.
        """
        tokens, counts = inputs
        # (ranks, own experts): how many tokens each rank sends to each expert of this rank.
        counts_by_rank = all_to_all_single(counts, None, None, self.group).view(self.group.size(), -1)
        self.sent = split_sizes(counts.view_as(counts_by_rank).sum(1))
        self.received = split_sizes(counts_by_rank.sum(1))
        arrived = all_to_all_single_autograd(tokens, self.received, self.sent, self.group)
        expert = torch.arange(counts_by_rank.shape[1], device=tokens.device).repeat(len(counts_by_rank))
        self.order = expert.repeat_interleave(counts_by_rank.flatten(), output_size=len(arrived)).argsort(stable=True)
        return arrived[self.order], counts_by_rank.sum(0)

    def combine(self, _: nn.Module, __: tuple[Tensor, Tensor], out: Tensor) -> Tensor:
        unsorted = torch.empty_like(out).index_copy(0, self.order, out)
        return all_to_all_single_autograd(unsorted, self.sent, self.received, self.group)


def split_sizes(counts: Tensor) -> list[int]:
    """Return the counts as a list of ints for the all-to-all collective; this waits for the device."""
    sizes: list[int] = counts.tolist()
    return sizes
