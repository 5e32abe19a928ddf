"""Causal attention within documents: in a packed sequence, no document attends to another.

Positions are not reset at the start of a document, because rotary embeddings depend only on differences of positions.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from trainer.models.decoder import Decoder


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
