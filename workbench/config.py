"""`workbench config`: the trainer's configuration, resolved and explained key by key."""

import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from workbench.launch.plan import LaunchError


def show(file: Path | None, overrides: Sequence[str], *, as_json: bool) -> str:
    """The resolved configuration as TOML-like lines, or as JSON."""
    import trainer.config
    from trainer.errors import ConfigError

    try:
        config = asdict(trainer.config.load(file, overrides))
    except ConfigError as error:
        raise LaunchError(error.message, error.hint) from error
    if as_json:
        return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()
    return "\n\n".join(f"[{section}]\n" + "\n".join(lines(keys)) for section, keys in config.items())


def lines(keys: dict[str, Any]) -> list[str]:
    return [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in keys.items()]


def explain(file: Path | None, overrides: Sequence[str], *, as_json: bool) -> str:
    """Every key with its class, as text or as the JSON of the contract."""
    import trainer.config
    from trainer.errors import ConfigError

    try:
        keys = trainer.config.explain(file, overrides)
    except ConfigError as error:
        raise LaunchError(error.message, error.hint) from error
    except tomllib.TOMLDecodeError as error:
        raise LaunchError(f"{file}: {error}", "mend the TOML") from error
    raise NotImplementedError(keys, as_json)
