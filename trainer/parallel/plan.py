"""Apply all kinds of parallelism to a model, in the order that they need."""

from trainer.config import ConfigError, JobConfig
from trainer.config.degrees import EXPERT
from trainer.config.sections import Compile
from trainer.models.decoder import Decoder, init_weights
from trainer.models.moe import moe_layers
from trainer.parallel.activation_checkpoint import apply_activation_checkpointing
from trainer.parallel.context_parallel import apply_context_parallel
from trainer.parallel.data_parallel import apply_ddp, apply_fsdp
from trainer.parallel.expert_parallel import apply_expert_parallel
from trainer.parallel.mesh import World
from trainer.parallel.tensor_parallel import apply_tensor_parallel


def parallelize(model: Decoder, config: JobConfig, world: World, seed: int) -> None:
    """Turn a model on the meta device into the part of it that this rank trains, with seeded weights."""
    parallelize_without_memory(model, config, world)
    model.to_empty(device=world.device)
    init_weights(model, seed)
    # DDP broadcasts the weights when it is applied, so they must be there.
    if world.data and not world.degrees.uses_fsdp:
        apply_ddp(model, world.data)


def parallelize_without_memory(model: Decoder, config: JobConfig, world: World) -> None:
    """Apply what can be applied before a model has memory; what is later in these lines wraps what is earlier."""
    for moe in moe_layers(model):
        moe.router.force_balance = config.debug.moe_force_load_balance
    if world.tensor:
        apply_tensor_parallel(model, world.tensor, shared=world.experts is not None)
    if world.context:
        balanced = config.parallelism.context_parallel_load_balancer is not None
        apply_context_parallel(model, world.context, config.training.seq_len, balanced=balanced)
    if world.experts:
        apply_expert_parallel(model, world.experts[EXPERT])
    apply_activation_checkpointing(model, config.activation_checkpoint)
    if config.compile.enable and "model" in config.compile.components:
        compile_blocks(model, config.compile)
    if world.degrees.uses_fsdp:
        apply_fsdp(model, world, config)


def compile_blocks(model: Decoder, config: Compile) -> None:
    """Compile one block at a time: they have the same shape, so the compiler works once.

    Raises:
        ConfigError: The model has experts.
    """
    if any(moe_layers(model)):
        raise ConfigError("blocks with experts cannot be compiled", 'give compile.components = ["loss"]')
    for block in model.layers.values():
        block.compile(backend=config.backend, fullgraph=True)
