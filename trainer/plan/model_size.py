"""The sizes of a model that the formulas of memory and time use."""

from dataclasses import dataclass

from trainer.config import JobConfig
from trainer.models.decoder import build_model, model_args


@dataclass(frozen=True)
class ModelSize:
    """The shape of a model, and the numbers of parameters in its layers.

    `in_layers` counts all of them, `active` those that a token uses: not all experts. `compute_bytes` is the size of a
    value in the dtype that the model computes in.
    """

    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    in_layers: int
    active: int
    seq_len: int
    compute_bytes: int

    @classmethod
    def of(cls, config: JobConfig) -> "ModelSize":
        """Return the sizes of the model that a configuration names.

        Raises:
            ConfigError: There is no such model.
        """
        shape = model_args(config)
        parameters = list(build_model(config).named_parameters())
        in_layers = sum(p.numel() for name, p in parameters if name.startswith("layers."))
        experts = sum(p.numel() for name, p in parameters if p.dim() > 2)
        used = getattr(shape, "top_k", 1) / max(getattr(shape, "n_experts", 1), 1)
        wide = config.training.mixed_precision_param == "float32"
        return cls(
            shape.dim, shape.hidden_dim, shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.vocab_size, in_layers,
            round(in_layers - experts * (1 - used)), config.training.seq_len, 4 if wide else 2,
        )  # fmt: skip

    @property
    def head(self) -> int:
        """The number of parameters of the output layer; the embedding has as many."""
        return self.vocab * self.dim

    @property
    def parameters(self) -> int:
        """The number of all parameters: those of the layers, the embedding and the output layer."""
        return self.in_layers + 2 * self.head
