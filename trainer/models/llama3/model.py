"""Llama 3: pre-norm blocks of grouped-query attention with rotary positions, and feed-forward layers with SwiGLU.

Shapes: B sequences, T tokens, D = dim, N heads, H = head_dim, K key-value heads, V = vocabulary.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config.shape import ModelArgs, RopeScaling, YarnScaling
from trainer.models.decoder import Decoder


def rotations(positions: Sequence[int], args: ModelArgs) -> Tensor:
    """Return exp(i * angle) for each position and pair of rotated features: (T, H/2), complex64.

    H is the number of rotated features of a head. With YaRN scaling the result is multiplied by `scaling.amplitude`.
    """
    speeds = args.rope_theta ** -(torch.arange(0, args.rotary_dim, 2).float() / args.rotary_dim)
    scaling, amplitude = args.rope_scaling, 1.0
    if isinstance(scaling, RopeScaling):
        speeds = scaled(speeds, scaling)
    elif scaling:
        speeds, amplitude = _scaled_by_yarn(speeds, scaling, args.rope_theta), scaling.amplitude
    angles = torch.outer(torch.tensor(positions).float(), speeds)
    return torch.complex(angles.cos(), angles.sin()) * amplitude


def scaled(speeds: Tensor, scaling: RopeScaling) -> Tensor:
    """Return the angle (in radians) by which each pair of features is rotated per position, after Llama 3.1's scaling.

    `speeds` has the angles before the scaling, one element for each pair of rotated features, as in the result. Example
    with the default scaling: a pair that makes 4 full turns or more in 8192 positions keeps its angle. A pair that
    makes less than one turn has its angle divided by 8. A pair that makes 2.5 turns is halfway between: its angle is
    multiplied by 0.5 + 0.5 / 8.
    """
    turns = scaling.original_length * speeds / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return speeds * torch.lerp(torch.tensor(1 / scaling.factor), torch.tensor(1.0), kept.clamp(0, 1))


def _scaled_by_yarn(speeds: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """Return the angle (in radians) by which each pair of features is rotated per position, after YaRN's scaling.

    `speeds` has the angles before the scaling, one element for each pair of rotated features, as in the result. `theta`
    is the base of the angles. Example with theta 10000 and 64 rotated features: pair 10.5 would make 32 full turns in
    4096 positions, and pair 22.5 one turn. So pairs up to 10 keep their angle, pairs from 23 on have it divided by
    `factor`, and pair 16 is 6/13 of the way between.
    """

    def pair(turns: float) -> float:
        return len(speeds) * math.log(scaling.original_length / (turns * 2 * math.pi)) / math.log(theta)

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * len(speeds) - 1)
    # At least a thousandth of a pair: without one to interpolate, the first would divide by zero.
    slowed = ((torch.arange(len(speeds)) - first) / (last - first or 0.001)).clamp(0, 1)
    return speeds * torch.lerp(torch.tensor(1.0), torch.tensor(1 / scaling.factor), slowed)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate each pair of neighbouring features of x (B, T, N, H) by the angle of its position.

    x has N heads of H features. `rope` is the result of `rotations`, (T, H/2) or longer. The method is called rotary
    embeddings: https://arxiv.org/abs/2104.09864.
    """
    turns = rope[: x.shape[1], None, :]
    pairs = x.float().view(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():
        # The compiler makes one kernel of these operations, but none of complex numbers.
        (cos, sin), (even, odd) = torch.view_as_real(turns).unbind(-1), pairs.unbind(-1)
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    else:
        turned = torch.view_as_real(torch.view_as_complex(pairs) * turns)
    return turned.flatten(-2).type_as(x)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of q to k and v, with N heads of H features: (B, N, T, H), like each of the inputs."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Causal grouped-query attention: several query heads share one key and value head. (B, T, D) -> (B, T, D)."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention
        self.head_dim = args.head_dim
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        """Return the attention's output (B, T, D) for x (B, T, D); `rope` has the rotation of each position."""
        q, k, v = self.heads(x)
        q, k = rotate(q, rope), rotate(k, rope)
        repeats = q.shape[2] // k.shape[2]
        # As in torchtitan; enable_gqa of scaled_dot_product_attention is experimental.
        k, v = (part.repeat_interleave(repeats, dim=2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = self.attend(q, k, v)
        projected: Tensor = self.wo(out.transpose(1, 2).flatten(-2))
        return projected

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries (B, T, N, H), keys and values (both (B, T, K, H)) of x (B, T, D), before they are rotated.

        N is the number of query heads, K the number of key and value heads, and H the number of features of each head.
        """
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        return q, k, v


class FeedForward(nn.Module):
    """A feed-forward layer with SwiGLU activation: (B, T, D) -> (B, T, D)."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual connection: (B, T, D) -> (B, T, D)."""

    def __init__(self, args: ModelArgs, attention: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.attention = attention
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.feed_forward = FeedForward(args.dim, args.hidden_dim)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        h: Tensor = x + self.attention(self.attention_norm(x), rope)
        out: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return out


class Llama3(Decoder):
    """Llama 3: tokens (B, T) -> logits (B, T, V), for sequences of up to `max_length` tokens."""

    rope: Tensor

    def __init__(self, args: ModelArgs, max_length: int) -> None:
        super().__init__()
        self.args, self.positions = args, range(max_length)
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleDict({str(i): self.block(i) for i in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        self.tie_weights()
        # Not in checkpoints, as it follows from the positions, and these differ between ranks of context parallelism.
        # Complex, because FSDP2 would cast real inputs of a block to bfloat16 as its weights, which is too coarse.
        self.register_buffer("rope", self.rotations(), persistent=False)

    def block(self, number: int) -> nn.Module:  # noqa: ARG002 - other models have blocks of several kinds
        return Block(self.args, Attention(self.args))

    def rotations(self) -> Tensor:
        return rotations(self.positions, self.args)

    def expect_positions(self, positions: Sequence[int]) -> None:
        self.positions = positions
        self.rope = self.rope.new_empty(len(positions), self.rope.shape[-1])

    def reset_buffers(self) -> None:
        self.rope = self.rotations().to(self.rope.device)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for block in self.layers.values():
            h = block(h, self.rope)
        logits: Tensor = self.output(self.norm(h))
        return logits


Model = Llama3
