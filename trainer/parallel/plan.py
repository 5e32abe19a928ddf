"""All parallelism that is applied to a model, in order."""

from trainer.config import ConfigError, JobConfig
from trainer.config.sections import Compile
from trainer.models.decoder import Decoder, init_weights
from trainer.models.moe import mixtures
from trainer.parallel.activation_checkpoint import apply_activation_checkpointing
from trainer.parallel.data_parallel import apply_ddp, apply_fsdp
from trainer.parallel.expert_parallel import apply_expert_parallel
from trainer.parallel.mesh import EXPERT, World


def parallelize(model: Decoder, config: JobConfig, world: World, seed: int) -> None:
    """Change a model on the meta device into the part of it that this rank trains, with seeded weights."""
    lay_out(model, config, world)
    model.to_empty(device=world.device)
    init_weights(model, seed)
    if world.mesh and world.degrees.dp_shard == 1:
        apply_ddp(model, world.mesh)


def lay_out(model: Decoder, config: JobConfig, world: World) -> None:
    """What can be applied to a model before it has memory: experts, recomputation, compilation, sharding."""
    for moe in mixtures(model):
        moe.router.even = config.debug.moe_force_load_balance
    if world.experts:
        apply_expert_parallel(model, world.experts[EXPERT])
    apply_activation_checkpointing(model, config.activation_checkpoint)
    if config.compile.enable and "model" in config.compile.components:
        compile_blocks(model, config.compile)
    if world.mesh and world.degrees.dp_shard > 1:
        apply_fsdp(model, world, config)


def compile_blocks(model: Decoder, config: Compile) -> None:
    """Compile one block at a time: they are alike, so the compiler works once.

    Raises:
        ConfigError: The model has experts.
    """
    if any(mixtures(model)):
        raise ConfigError("blocks with experts cannot be compiled", 'give compile.components = ["loss"]')
    for block in model.layers.values():
        block.compile(backend=config.backend, fullgraph=True)
