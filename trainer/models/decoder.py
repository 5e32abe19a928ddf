"""The base class of all models, creation of a model by name, and initial weights that are equal on every mesh."""

import importlib
import math
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from trainer.config import JobConfig
from trainer.config.checks import check_experts, model_shape
from trainer.config.converters import convert
from trainer.config.mesh import Part
from trainer.config.shape import ModelArgs
from workbench.recorders.memory.tensor_hooks import without_wrappers

Draw = Callable[[str, Tensor, int, int], Tensor]
"""A function (parameter name, parameter, number of layers, seed) that returns the initial values of the parameter."""


class Decoder(nn.Module):
    """Base class of language models that are a stack of blocks: tokens (B, T) -> logits (B, T, V)."""

    tok_embeddings: nn.Embedding
    layers: nn.ModuleDict
    output: nn.Linear
    args: ModelArgs
    part: Part
    """The part of the model that this module holds; it is the whole model without a pipeline."""
    positions: Sequence[int]
    """The position of each input token in its sequence; with context parallelism, only this rank's positions."""

    @abstractmethod
    def expect_positions(self, positions: Sequence[int]) -> None:
        """Prepare for inputs that have only these token positions of each sequence, before memory is allocated."""

    @abstractmethod
    def reset_buffers(self) -> None:
        """Compute the values of the buffers, after memory was allocated for them."""

    def flops_per_token(self, length: int) -> int:
        """Return the floating-point operations per token, forward and backward, for sequences of `length` tokens.

        There are 6 operations per weight, and 12 per layer, feature of the heads and token of the sequence (PaLM,
        appendix B: https://arxiv.org/abs/2204.02311).
        """
        weights = sum(p.numel() for p in self.parameters())
        if not self.args.enable_weight_tying:  # a tied weight is multiplied in the output layer
            weights -= self.tok_embeddings.weight.numel()
        return 6 * weights + 12 * len(self.layers) * self.args.n_heads * self.args.head_dim * length

    def tie_weights(self) -> None:
        """Let the output layer share the weight of the embedding, if `enable_weight_tying` is set.

        Call this method after each change that replaces parameters by new ones.
        """
        if self.args.enable_weight_tying:
            self.output.weight = self.tok_embeddings.weight

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Self:
        super().to_empty(device=device, recurse=recurse)
        self.tie_weights()
        return self

    def initialised_as(self, name: str) -> str:
        """Return the name of the parameter whose rule initialises the parameter `name`; usually this is `name` itself.

        A tied weight is initialised like an output layer. The larger values of an embedding would make large logits.
        """
        return "output.weight" if self.args.enable_weight_tying and name == "tok_embeddings.weight" else name


def model_args(config: JobConfig) -> ModelArgs:
    """Return the shape of the model that `config` names.

    Raises:
        ConfigError: There is no such model or flavor.
    """
    return model_shape(config)


def build_model(config: JobConfig, args: ModelArgs | None = None) -> Decoder:
    """Return the configured model on the meta device, so that parallelism is applied before memory is allocated.

    `args`, if given, replaces the configured model shape.

    Raises:
        ConfigError: There is no such model or flavor, or its experts cannot be divided among the ranks.
    """
    shape = args or model_args(config)
    check_experts(config, getattr(shape, "n_experts", 0))
    build = importlib.import_module(f"trainer.models.{config.model.name}.model").Model
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, config.training.dtype))
    try:
        with torch.device("meta"):
            model: Decoder = build(shape, config.training.seq_len)
            convert(model, config)
    finally:
        torch.set_default_dtype(default_dtype)
    return model


def draw(name: str, parameter: Tensor, n_layers: int, seed: int) -> Tensor:
    """Return the initial values of a whole parameter; they depend only on the arguments and the parameter's shape."""
    generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    fill(name, full, n_layers, generator)
    return full


@torch.no_grad()
def init_weights(model: Decoder, seed: int, draw: Draw = draw) -> None:
    """Fill all parameters and buffers; each parameter has its own random generator, seeded by `seed` and its name.

    Parameters are drawn whole, one at a time; sharded parameters are then cut. So the values do not depend on the mesh,
    and no rank ever holds the full model.
    """
    for name, parameter in model.named_parameters():
        drawn_as = model.initialised_as(without_wrappers(name))
        set_whole(parameter, draw(drawn_as, parameter, model.args.n_layers, seed))
    model.reset_buffers()


@torch.no_grad()
def set_whole(parameter: Tensor, full: Tensor) -> None:
    """Copy `full`, a whole tensor that every rank has, into a parameter that may be sharded."""
    if isinstance(parameter, DTensor):
        # Every rank has drawn the same values: with the default, rank 0 would send its own to all.
        full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(full)


def fill(name: str, full: Tensor, n_layers: int, generator: torch.Generator) -> None:
    """Fill `full` in place with the initial values of parameter `name`, in a model of `n_layers` layers.

    Norm weights are 1. In deeper models, weights whose output is added to the residual stream are smaller.
    """
    if "norm" in name:
        full.fill_(1.0)
    elif name.startswith("tok_embeddings"):
        full.normal_(generator=generator)
    else:
        # GPT-2's rule: N layers add 2 N outputs to the stream, whose variance would grow with them.
        std = 0.02 / math.sqrt(2 * n_layers) if name.endswith((".wo.weight", ".w2.weight", ".w2")) else 0.02
        # As in torchtitan: at first, each logit then has a variance of about 1.
        std = full.shape[-1] ** -0.5 if name.startswith("output") else std
        nn.init.trunc_normal_(full, std=std, a=-3 * std, b=3 * std, generator=generator)


# Causal attention within documents: in a packed sequence, no document attends to another.
#
# Positions are not reset at the start of a document, because rotary embeddings depend only on differences of
# positions.


class DocumentAttention:
    """The attention function of all blocks of a model; `separate` sets the documents of the next batch."""

    def __init__(self) -> None:
        self.allowed: Tensor | None = None

    def separate(self, documents: Tensor | None) -> None:
        """Let each token of the next batch attend only to itself and to earlier tokens of its document.

        `documents` (B, T) has the number of each token's document. If it is None, each token attends to all earlier
        tokens.
        """
        if documents is None:
            self.allowed = None
            return
        length = documents.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
        self.allowed = ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention of q to k and v, each (B, N, T, H): B sequences, N heads, T tokens, H features."""
        # Without a mask, because a mask would rule out the flash kernels of CUDA.
        if self.allowed is None:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed)


def separate_documents(models: Iterable[Decoder]) -> DocumentAttention:
    """Replace the attention function of all blocks of `models` by one `DocumentAttention`, and return it.

    If the blocks already have a `DocumentAttention`, return that one.
    """
    blocks = [block for model in models for block in model.layers.values()]
    known = getattr(blocks[0].attention, "attend", None)
    shared = known if isinstance(known, DocumentAttention) else DocumentAttention()
    for block in blocks:
        block.attention.attend = shared  # type: ignore[union-attr]
    return shared
