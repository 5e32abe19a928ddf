"""Expert parallelism: each rank holds some of the experts; tokens are sent to the ranks of their experts and back."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.models.moe import Experts, moe_layers


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
