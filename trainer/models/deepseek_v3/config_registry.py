"""Configurations of DeepSeek-V3 that are ready to use: `--module deepseek_v3 --config NAME`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainer.config.hf_format import ATTENTION, LISTED_EXPERTS, Format, Place, exceeding, feed_forward
from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Model, Training
from trainer.config.shape import YarnScaling
from trainer.models.llama3.config_registry import llama3_debugmodel
from trainer.models.llama4.config_registry import ModelArgs as MixtureArgs


def deepseek_v3_debugmodel() -> JobConfig:
    config = llama3_debugmodel()
    config.model = Model("deepseek_v3", "debugmodel")
    return config


def deepseek_v3_671b() -> JobConfig:
    """Return the configuration of the published 671B model, with torchtitan's batch size and learning rate."""
    config = JobConfig(model=Model("deepseek_v3", "671B"), activation_checkpoint=ActivationCheckpoint("full"))
    config.optimizer.lr = 2.2e-4
    config.lr_scheduler = LRScheduler(warmup_steps=2000, decay_ratio=0.8, min_lr_factor=0.1)
    config.training = Training(local_batch_size=4, seq_len=4096, steps=10000)
    return config


@dataclass(frozen=True)
class ModelArgs(MixtureArgs):
    """The shape of a DeepSeek-V3 model.

    Keys and values of all heads are computed from `kv_lora_rank` features per token (the latent). In the queries and
    keys of a head, `plain_head_dim` features are not rotated and `rope_head_dim` features are rotated. Its values have
    `v_head_dim` features.
    """

    dim: int = 7168
    n_layers: int = 61
    n_heads: int = 128
    n_kv_heads: int = 128
    hidden_dim: int = 18432
    vocab_size: int = 129280
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    n_experts: int = 256
    top_k: int = 8
    expert_dim: int = 2048
    q_lora_rank: int | None = 1536
    """The number of features per token from which all queries are computed; None: all features of the token."""
    kv_lora_rank: int = 512
    plain_head_dim: int = 128
    rope_head_dim: int = 64
    v_head_dim: int = 128
    n_dense_layers: int = 3
    """Number of layers at the beginning that have no experts."""
    n_shared_experts: int = 1
    """Number of experts that every token uses; they are computed as one wide feed-forward layer."""
    n_groups: int = 8
    top_groups: int = 4
    """Number of groups (of `n_groups`) from which a token's experts come: those with the best sum of two scores."""
    route_scale: float = 2.5
    """The sum to which the weights of a token's experts are scaled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_dim", self.plain_head_dim + self.rope_head_dim)

    @property
    def rotary_dim(self) -> int:
        return self.rope_head_dim


FLAVORS = {
    # As small as Llama 3's, with two groups of experts of which a token uses one.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=4, hidden_dim=192, vocab_size=320, n_experts=8, top_k=2, expert_dim=64,
        q_lora_rank=32, kv_lora_rank=32, plain_head_dim=16, rope_head_dim=8, v_head_dim=16, n_dense_layers=1,
        n_groups=2, top_groups=1,
    ),
    "671B": ModelArgs(rope_scaling=YarnScaling(mscale=1.0, mscale_all_dim=1.0)),
}  # fmt: skip


# Neighbouring features are rotated together there, too.
_PROJECTIONS = {
    "wq": "q_proj", "wq_a": "q_a_proj", "q_norm": "q_a_layernorm", "wq_b": "q_b_proj",
    "wkv_a": "kv_a_proj_with_mqa", "kv_norm": "kv_a_layernorm", "wkv_b": "kv_b_proj",
}  # fmt: skip


def _unsupported(described: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a config.json with impossible values, such as more experts per token than experts in total."""
    yield from exceeding(described, "num_experts_per_tok", "n_routed_experts")
    yield from exceeding(described, "topk_group", "n_group")
    experts, groups = described.get("n_routed_experts"), described.get("n_group")
    if isinstance(experts, int) and isinstance(groups, int) and groups > 0 and experts % groups:
        yield "n_group"


FORMAT = Format(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    ModelArgs,
    {
        **ATTENTION, **LISTED_EXPERTS, **feed_forward("feed_forward", "mlp"),
        "moe.expert_bias": Place("mlp.gate.e_score_correction_bias"),
        **feed_forward("moe.shared_experts", "mlp.shared_experts"),
        **{f"attention.{ours}.weight": Place(f"self_attn.{theirs}.weight") for ours, theirs in _PROJECTIONS.items()},
    },
    settings={
        "expert_dim": "moe_intermediate_size", "n_experts": "n_routed_experts", "top_k": "num_experts_per_tok",
        "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank", "plain_head_dim": "qk_nope_head_dim",
        "rope_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim", "n_dense_layers": "first_k_dense_replace",
        "n_shared_experts": "n_shared_experts", "n_groups": "n_group", "top_groups": "topk_group",
        "route_scale": "routed_scaling_factor",
    },
    omitted={"q_lora_rank": None},
    derived=("head_dim",),
    fixed={
        "hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True, "rope_interleave": True,
        "scoring_func": "sigmoid", "moe_layer_freq": 1,
    },
    unsupported=_unsupported,
)  # fmt: skip
