"""Mixture of experts: a router sends each token to a few of many feed-forward networks (experts).

A shared expert may get all tokens. Shapes: N = B * T tokens, D = dim, E experts of hidden width F, K experts per
token, R = N * K routed token copies.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

BIAS_STEP = 1e-3
"""The amount by which one step changes the routing bias of an expert; torchtitan calls it load_balance_coeff."""
grouped_mm = getattr(functional, "grouped_mm", None) or torch._grouped_mm  # noqa: SLF001 - public since torch 2.10


class Router(nn.Module):
    """Chooses K experts for each of N tokens (N, D) by their scores, out of E experts.

    The arguments of a call are the tokens and a bias for each expert (E,). The results are the weights (N, K), float32,
    and the indices (N, K) of the chosen experts.
    """

    def __init__(self, dim: int, n_experts: int, top_k: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.top_k = top_k
        self.force_balance = False
        """Whether tokens go to the experts in turn, regardless of their scores."""
        self.whole_gradient: Callable[[Tensor], Tensor] | None = None
        """A function that sums the gradient of a weight over ranks; needed if each rank scores other tokens."""

    def forward(self, tokens: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights (N, K), float32, and the indices (N, K) of each token's experts.

        `bias` (E,) is added to the scores only to choose experts; it does not change their weights.
        """
        # In float32, as in torchtitan: with scores in bfloat16, the loss may explode.
        scores = self.score(self.gate_scores(tokens).float())
        if self.force_balance:
            slots = torch.arange(len(tokens) * self.top_k, device=tokens.device)
            experts = slots.view(-1, self.top_k) % scores.shape[1]
        else:
            experts = self.choose(scores + bias)  # the bias chooses, but weighs nothing
        return self.weigh(scores.gather(1, experts)), experts

    def score(self, logits: Tensor) -> Tensor:
        """Return the score of each expert for each token (N, E), from 0 to 1; `logits` (N, E) come from the gate."""
        return logits.sigmoid()

    def choose(self, scores: Tensor) -> Tensor:
        """Return the indices of each token's K experts (N, K); `scores` (N, E) have the bias added."""
        return scores.topk(self.top_k, dim=-1).indices

    def weigh(self, scores: Tensor) -> Tensor:
        """Return the weights of each token's experts (N, K); `scores` (N, K) belong to the chosen experts."""
        return scores

    def gate_scores(self, tokens: Tensor) -> Tensor:
        """Return the outputs of the gate for each token and expert (N, E), from which `score` computes scores."""
        if self.whole_gradient:
            return functional.linear(tokens, self.whole_gradient(self.gate.weight))
        scores: Tensor = self.gate(tokens)
        return scores


class SoftmaxRouter(Router):
    """A router whose scores for a token sum to 1 over all experts.

    If `norm_weights` is set, the weights of the chosen experts sum to 1 too.
    """

    def __init__(self, dim: int, n_experts: int, top_k: int, *, norm_weights: bool) -> None:
        super().__init__(dim, n_experts, top_k)
        self.norm_weights = norm_weights

    def score(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def weigh(self, scores: Tensor) -> Tensor:
        """Return the weights of each token's experts (N, K); `scores` (N, K) belong to the chosen experts."""
        return scores / scores.sum(-1, keepdim=True) if self.norm_weights else scores


class GroupedRouter(Router):
    """A router that first chooses groups of experts, and then experts within these groups.

    Each token uses experts from `top_groups` of the `groups` groups. The weights of its experts sum to `scale`.
    """

    def __init__(self, dim: int, n_experts: int, top_k: int, groups: int, top_groups: int, scale: float) -> None:
        super().__init__(dim, n_experts, top_k)
        self.groups, self.top_groups, self.scale = groups, top_groups, scale

    def choose(self, scores: Tensor) -> Tensor:
        """Return the indices of each token's K experts (N, K); `scores` (N, E) have the bias added.

        The score of a group is the sum of its two best scores; if the group has only one expert, it is the score of
        this expert.
        """
        grouped = scores.view(len(scores), self.groups, -1)
        of_group = grouped.topk(min(2, grouped.shape[2]), dim=-1).values.sum(-1)
        best = of_group.topk(self.top_groups, dim=-1).indices
        other = torch.ones_like(of_group, dtype=torch.bool).scatter(1, best, value=False)
        # Not 0, as with its bias the score of a chosen expert may be negative.
        return super().choose(grouped.masked_fill(other.unsqueeze(-1), -torch.inf).flatten(1))

    def weigh(self, scores: Tensor) -> Tensor:
        return self.scale * scores / scores.sum(-1, keepdim=True)


class Experts(nn.Module):
    """The experts of a layer: E feed-forward networks with SwiGLU activation.

    The arguments of a call are R copies of tokens sorted by expert, (R, D), and the number of copies for each expert,
    `counts` (E,). The result is the outputs (R, D).
    """

    def __init__(self, dim: int, hidden_dim: int, n_experts: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(n_experts, hidden_dim, dim))
        self.w2 = nn.Parameter(torch.empty(n_experts, dim, hidden_dim))
        self.w3 = nn.Parameter(torch.empty(n_experts, hidden_dim, dim))

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        # How many tokens there are depends on the data, which DTensor cannot express.
        """Return the output for each token (R, D), in the order of the tokens."""
        w1, w2, w3 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2, self.w3))
        tokens, ends = tokens.to(w1.dtype), counts.cumsum(0, dtype=torch.int32)
        gate, up = (grouped_mm(tokens, w.transpose(1, 2), offs=ends) for w in (w1, w3))
        out: Tensor = grouped_mm(functional.silu(gate) * up, w2.transpose(1, 2), offs=ends)
        return out


class MoE(nn.Module):
    """A mixture of experts, with a shared expert for all tokens if `shared` is given: (B, T, D) -> (B, T, D).

    The experts' weights multiply the inputs of the experts; with `weighs_outputs`, they multiply the outputs.
    """

    expert_bias: Tensor
    tokens_per_expert: Tensor

    def __init__(
        self, router: Router, experts: Experts, shared: nn.Module | None = None, *, weighs_outputs: bool = False
    ) -> None:
        super().__init__()
        self.weighs_outputs = weighs_outputs
        self.router, self.experts, self.shared_experts = router, experts, shared
        self.register_buffer("expert_bias", torch.zeros(len(experts.w1)))
        # Not in checkpoints, as the counts are zero between two steps.
        self.register_buffer("tokens_per_expert", torch.zeros(len(experts.w1)), persistent=False)

    def reset_buffers(self) -> None:
        self.expert_bias.zero_()
        self.tokens_per_expert.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the outputs of the chosen experts and of the shared expert, if there is one.

        Copies of the tokens are sorted by expert. Example with 3 tokens, K = 1, experts [1, 0, 1]: `order` is [1, 0,
        2]. So expert 0 gets token 1, and expert 1 gets tokens 0 and 2. index_add puts each output back into the row of
        its token.
        """
        tokens = x.flatten(0, 1)
        weights, experts = self.router(tokens, self.expert_bias)
        slots = experts.flatten()
        counts = slots.new_zeros(len(self.expert_bias)).scatter_add_(0, slots, torch.ones_like(slots))
        self.tokens_per_expert += counts
        # A stable sort keeps the tokens of an expert in order, so that results do not depend on the sort.
        order = slots.argsort(stable=True)
        rows = order // self.router.top_k
        scale = weights.flatten()[order].unsqueeze(1)
        if self.weighs_outputs:
            routed = self.experts(tokens[rows].type_as(x), counts) * scale
        else:
            routed = self.experts((tokens[rows] * scale).type_as(x), counts)
        shared = self.shared_experts(tokens) if self.shared_experts else torch.zeros_like(tokens)
        out: Tensor = shared.index_add(0, rows, routed.type_as(shared))
        return out.view_as(x)


def moe_layers(model: nn.Module) -> Iterator[MoE]:
    return (module for module in model.modules() if isinstance(module, MoE))


@torch.no_grad()
def balance_experts(model: nn.Module, *meshes: DeviceMesh | None) -> None:
    """Adjust the routing bias of each expert by the number of tokens that it got in this step, and reset the counts.

    The counts are summed over all ranks of `meshes`. This bias balances the experts without an additional loss:
    https://arxiv.org/abs/2408.15664.
    """
    layers = list(moe_layers(model))
    if not layers:
        return
    counts = torch.stack([moe.tokens_per_expert for moe in layers])
    for group in [group for mesh in meshes if mesh for group in mesh.get_all_groups()]:
        dist.all_reduce(counts, group=group)
    moves = BIAS_STEP * torch.sign(counts.mean(1, keepdim=True) - counts)
    # Without the mean move: only differences between biases matter, and a common drift would cost precision.
    for moe, move in zip(layers, moves - moves.mean(1, keepdim=True), strict=True):
        moe.expert_bias += move
        moe.tokens_per_expert.zero_()
