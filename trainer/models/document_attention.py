"""Causal attention within documents: no document of a packed sequence attends to another.

Positions run on over the documents of a sequence: rotary embeddings depend on differences of positions alone.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from trainer.models.decoder import Decoder


class DocumentAttention:
    """The attention of all blocks of a model; `separate` sets the documents of the next batch."""

    def __init__(self) -> None:
        self.allowed: Tensor | None = None

    def separate(self, documents: Tensor | None) -> None:
        """Let each token of the next batch attend to the earlier ones of its document alone.

        `documents` (B, T) has the number of each token's document; None: to all earlier tokens.
        """
        if documents is None:
            self.allowed = None
            return
        length = documents.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
        self.allowed = ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention of q to k and v, (B, N, T, H) each."""
        if self.allowed is None:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed)


def separate_documents(models: Iterable[Decoder]) -> DocumentAttention:
    """Return the attention that the blocks of these models have from now on; it is the same for all of them."""
    blocks = [block for model in models for block in model.layers.values()]
    known = getattr(blocks[0].attention, "attend", None)
    shared = known if isinstance(known, DocumentAttention) else DocumentAttention()
    for block in blocks:
        block.attention.attend = shared  # type: ignore[union-attr]
    return shared
