"""Describe the training job that wrote a snapshot, and predict the bytes that one layer saves for the backward pass."""

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The training job that wrote a snapshot, as far as its run.json describes it.

    `dim`, `hidden_dim`, `layers`, `heads` and `head_dim` are the shape of the model: its width, the width of its
    feed-forward layers, and the numbers of layers and of attention heads (None: not recorded). `head_dim` is the size
    of a head (None: `dim` divided by `heads`). `batch` is the local batch size, and `seq` the length of a sequence in
    tokens. `compute_bytes` and `state_bytes` are the bytes of one element of an activation and of the optimizer's
    state. `checkpointing` is the mode of activation checkpointing. `dp_shard` is the number of ranks that shard one
    copy of the model, and `world_size` the number of all ranks.
    """

    name: str
    dim: int | None = None
    hidden_dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    """The size of an attention head; None: `dim` divided by `heads`."""
    batch: int
    seq: int
    compute_bytes: int
    state_bytes: int
    checkpointing: str
    dp_shard: int
    world_size: int

    @property
    def tokens(self) -> int:
        """The tokens of one forward pass on one rank: local batch size times sequence length."""
        return self.batch * self.seq

    @property
    def activation_bytes_per_layer(self) -> int | None:
        """The bytes that one transformer layer (pre-norm, SwiGLU) saves for its backward pass, without recomputation.

        The count follows Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1), for a layer without dropout and
        biases whose attention (FlashAttention, Dao et al. 2022) keeps no scores. Elements in units of tokens x dim: the
        inputs of both norms and of the projections after them (4). In units of tokens x heads x head_dim (equal to dim
        in many models): queries, keys and values with heads repeated (3), the attention's output (1) and its copy for
        the projection (1). In units of tokens x hidden_dim: both branches, the activated branch and their product (4).
        In float32, per token: a factor for each norm, and the logarithm of the softmax's sum for each head.

        The result is None if run.json lacks one of these values. Example: dim 256, hidden_dim 768, 8 heads, 512 tokens
        in bfloat16 (2 bytes) save 512 x ((9 x 256 + 4 x 768) x 2 + 4 x (2 + 8)) = 5,525,504 bytes.
        """
        if self.dim is None or self.hidden_dim is None or self.heads is None:
            return None
        attention = self.dim if self.head_dim is None else self.heads * self.head_dim
        width = 4 * self.dim + 5 * attention + 4 * self.hidden_dim
        return self.tokens * (width * self.compute_bytes + 4 * (2 + self.heads))
