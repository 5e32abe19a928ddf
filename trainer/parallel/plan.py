"""All parallelism that is applied to a model, in order."""

from trainer.config import JobConfig
from trainer.config.sections import Compile
from trainer.models.decoder import Decoder, init_weights
from trainer.parallel.activation_checkpoint import apply_activation_checkpointing
from trainer.parallel.data_parallel import apply_ddp, apply_fsdp
from trainer.parallel.mesh import World


def parallelize(model: Decoder, config: JobConfig, world: World, seed: int) -> None:
    """Change a model on the meta device into the part of it that this rank trains, with seeded weights."""
    lay_out(model, config, world)
    model.to_empty(device=world.device)
    init_weights(model, seed)
    if world.mesh and world.degrees.dp_shard == 1:
        apply_ddp(model, world.mesh)


def lay_out(model: Decoder, config: JobConfig, world: World) -> None:
    """What can be applied to a model before it has memory: recomputation, compilation, sharding."""
    apply_activation_checkpointing(model, config.activation_checkpoint)
    if config.compile.enable and "model" in config.compile.components:
        compile_blocks(model, config.compile)
    if world.mesh and world.degrees.dp_shard > 1:
        apply_fsdp(model, world.mesh, config)


def compile_blocks(model: Decoder, config: Compile) -> None:
    """Compile one block at a time: they are alike, so the compiler works once."""
    for block in model.layers.values():
        block.compile(backend=config.backend, fullgraph=True)
