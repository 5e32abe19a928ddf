"""Find the mesh nearest to a mesh that cannot be used, for the hint of an error."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

from trainer.config.checks import check_divisions, validate
from trainer.config.mesh.degrees import EXPERT, KEYS, SHARD, Degrees, WrongWorldSize, degrees
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError

_MOST_TRIED = 2000
"""The most meshes that are tried; the nearest one is usually among the first ten."""


def checked_mesh(config: JobConfig, world_size: int) -> Degrees:
    """Return the degrees of a job like `validate`; if they are wrong, the error's hint names the nearest valid mesh.

    Raises:
        ConfigError: As for `validate`.
    """
    try:
        return validate(config, world_size)
    except ConfigError as error:
        # If the mesh fits, the fault is elsewhere, and another mesh would not help.
        if world_size < 1 or fits(config, world_size):
            raise
        raise ConfigError(error.message, _hint_with_mesh(error, config, world_size)) from error


def _hint_with_mesh(error: ConfigError, config: JobConfig, world_size: int) -> str:
    """Return the hint of an error about a mesh, completed by the nearest mesh that fits, if there is one."""
    changes = nearest_mesh(config, world_size)
    if changes is None:
        return error.hint
    change = "set " + " and ".join(f"parallelism.{key} to {degree}" for key, degree in changes.items())
    if not isinstance(error, WrongWorldSize):
        return error.hint if change in error.hint else f"{error.hint}, or {change}"
    fitting = error.fitting
    start = f"start {fitting} processes (--nproc {fitting} on one node), or " if fits(config, fitting) else ""
    return f"{start}{change}"


def nearest_mesh(config: JobConfig, world_size: int) -> dict[str, int] | None:
    """Return {key: degree}, the smallest changes after which the mesh fits the ranks and the model.

    As few keys as possible change. Return None if no mesh with this number of ranks fits. Example: tensor 3 on 8 ranks
    becomes tensor 2.
    """
    nearest = sorted(meshes(config, world_size), key=lambda changes: distance(config, changes))
    return next((changes for changes in nearest[:_MOST_TRIED] if fits(with_degrees(config, changes), world_size)), None)


def meshes(config: JobConfig, world_size: int) -> Iterator[dict[str, int]]:
    """Yield {key: degree} for every mesh of `world_size` ranks: the degrees that differ from the configured ones.

    A shard degree of -1 stays.
    """
    divisors = [number for number in range(1, min(world_size, 4096) + 1) if world_size % number == 0]
    names = [name for name in KEYS if name != SHARD]
    asked = {name: int(getattr(config.parallelism, key)) for name, key in KEYS.items()}
    choices = product(*(divisors if name != EXPERT or asked[name] > 1 else [1] for name in names))
    # A bound on the time: large numbers of ranks have many divisors, whose combinations are countless.
    for values in islice(choices, 500_000):
        mesh = dict(zip(names, values, strict=True))
        # Experts are divided among ranks that the other degrees have already counted.
        used = math.prod(degree for name, degree in mesh.items() if name != EXPERT)
        if world_size % used == 0:
            mesh[SHARD] = -1 if asked[SHARD] == -1 else world_size // used
            yield {KEYS[name]: degree for name, degree in mesh.items() if degree != asked[name]}


def distance(config: JobConfig, changes: dict[str, int]) -> tuple[int, float]:
    """Return how far changed degrees are from the configured ones: (number of changes, doublings or halvings).

    The caller looks for the smallest result. Example: tensor 2 to 8 is one change with two doublings, so (1, 2.0).
    """
    before = {key: max(1, int(getattr(config.parallelism, key))) for key in changes}
    return len(changes), sum(abs(math.log2(degree / before[key])) for key, degree in changes.items())


def with_degrees(config: JobConfig, changes: dict[str, int]) -> JobConfig:
    """Return a copy of the configuration with the degrees `changes`, {key: degree}."""
    parallelism = replace(config.parallelism)
    for key, degree in changes.items():
        setattr(parallelism, key, degree)
    return replace(config, parallelism=parallelism)


def fits(config: JobConfig, world_size: int) -> bool:
    """Return whether the mesh fits the number of ranks, and the model and the batch can be divided among them."""
    try:
        check_divisions(config, degrees(config.parallelism, world_size))
    except ConfigError:
        return False
    return True
