"""Check that this rank's device supports what the configuration asks for, such as matrix products in float8."""

from trainer.config.converters import FLOAT8
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError

Capability = tuple[int, int]
"""The compute capability of a CUDA device as (major, minor), such as (9, 0)."""
_WITH_FLOAT8: Capability = (8, 9)


def check_devices(config: JobConfig, capability: Capability | None) -> None:
    """Raise ConfigError if the configuration needs a CUDA device that is missing or too old.

    `capability` is the compute capability of this rank's CUDA device, or None without a device. A dry run (comm.mode
    fake_backend) needs no device, because its tensors have no values.
    """
    if config.comm.mode == "fake_backend":
        return
    where = f"a device of compute capability {capability[0]}.{capability[1]}" if capability else "a CPU"
    if FLOAT8 in config.model.converters and not config.float8.emulate and (capability or (0, 0)) < _WITH_FLOAT8:
        raise ConfigError(
            f"model.converters float8 on {where}: float8 products need compute capability 8.9 (H100, L40) or more",
            "add --float8.emulate, which rounds to float8 and computes in float32, or leave float8 out",
        )
    overlaps = config.parallelism.enable_async_tensor_parallel and config.parallelism.tensor_parallel_degree > 1
    if overlaps and not capability:
        raise ConfigError(
            f"parallelism.enable_async_tensor_parallel on {where}: it copies between the memories of CUDA devices",
            "leave it out, and ranks wait for their collectives",
        )
