"""The sizes of a model that the formulas of memory and time use."""

from dataclasses import dataclass

from trainer.config import JobConfig
from trainer.models.decoder import build_model, model_args


@dataclass(frozen=True)
class ModelSize:
    """The shape of a model, and the numbers of parameters in its layers.

    `in_layers` counts all parameters in the layers. `active` leaves out the experts that a token does not use.
    `compute_bytes` is the size of a value in the dtype in which the model computes.
    """

    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    in_layers: int
    active: int
    seq_len: int
    compute_bytes: int
    tied: bool = False
    """Whether the output layer shares the weight of the embedding."""

    @classmethod
    def of(cls, config: JobConfig) -> "ModelSize":
        """Return the sizes of the model that a configuration names.

        Raises:
            ConfigError: There is no such model.
        """
        shape = model_args(config)
        parameters = list(build_model(config).named_parameters())
        in_layers = sum(p.numel() for name, p in parameters if name.startswith("layers."))
        # Only the weights of experts have three dimensions.
        experts = sum(p.numel() for name, p in parameters if p.dim() > 2)
        used = getattr(shape, "top_k", 1) / max(getattr(shape, "n_experts", 1), 1)
        wide = config.training.mixed_precision_param == "float32"
        return cls(
            shape.dim, shape.hidden_dim, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim,
            shape.vocab_size, in_layers, round(in_layers - experts * (1 - used)), config.training.seq_len,
            4 if wide else 2, shape.enable_weight_tying,
        )  # fmt: skip

    @property
    def head(self) -> int:
        """The number of parameters of the output layer; the embedding has equally many."""
        return self.vocab * self.dim

    @property
    def ends(self) -> int:
        """The number of parameters of the embedding and the output layer; a shared weight counts once."""
        return self.head if self.tied else 2 * self.head

    @property
    def attention_dim(self) -> int:
        """The number of features of all queries of a token in one layer."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """The number of features of all keys and values of a token in one layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def activations(self) -> int:
        """The number of values per token that a layer keeps for its backward pass, as in `analyzers.memory.job`."""
        return 4 * self.dim + 5 * self.attention_dim + 4 * self.hidden_dim

    @property
    def parameters(self) -> int:
        """The number of all parameters, in the layers, the embedding and the output layer."""
        return self.in_layers + self.ends
