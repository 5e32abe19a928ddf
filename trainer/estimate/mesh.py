"""Derive from a configured job the job whose step runs on fake tensors, and describe the differences."""

from dataclasses import dataclass, field, replace

from trainer.config import JobConfig
from trainer.config.checks import check_divisions
from trainer.config.converters import FLOAT8
from trainer.config.mesh import Degrees, degrees
from trainer.config.sections import Compile
from trainer.models.decoder import model_args


@dataclass(frozen=True)
class LocalProblem:
    """The job whose step runs on fake tensors to measure memory, in place of the configured job.

    `config` is the configuration without compilation, CPU offload and float8. `degrees` are the parallel degrees of the
    configured job. `notes` has sentences on what the estimate assumes.
    """

    config: JobConfig
    degrees: Degrees = field(default_factory=Degrees)
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks in a pipeline stage that shard or copy the weights.

        Ranks that split a matrix product together (tensor parallelism) count as one.
        """
        return self.degrees.dp_replicate * self.degrees.sharding


def local_problem(config: JobConfig, world_size: int) -> LocalProblem:
    """Return the job to run on fake tensors in place of the configured job of `world_size` ranks.

    Raises:
        ConfigError: There is no such model, it cannot be divided evenly, or the degrees do not fit the world size.
    """
    found = degrees(config.parallelism, world_size)
    check_divisions(config, found)
    filled = replace(config.parallelism, data_parallel_shard_degree=found.dp_shard)
    on_device = replace(config.training, enable_cpu_offload=False)
    converters = [name for name in config.model.converters if name != FLOAT8]
    model = replace(config.model, converters=converters)
    rehearsed = replace(config, parallelism=filled, compile=Compile(), training=on_device, model=model)
    return LocalProblem(rehearsed, found, tuple(assumptions(config)))


def assumptions(config: JobConfig) -> list[str]:
    """Return sentences on what the estimate assumes, for the configured settings that it does not model exactly."""
    has_experts = hasattr(model_args(config), "n_experts")
    assumed = {
        "products in the type of mixed_precision_param; float8 keeps smaller operands": FLOAT8
        in config.model.converters,
        "all experts get equally many tokens; in a run the router decides": has_experts,
        "weights, gradients and optimizer state on the device; training.enable_cpu_offload moves them to the CPU"
        "'s memory": config.training.enable_cpu_offload,
        "no compilation; compiled code keeps fewer activations": config.compile.enable,
    }
    return [text for text, applies in assumed.items() if applies]
