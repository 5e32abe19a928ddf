"""Write the configuration as text: the help for every flag, and the resolved values as TOML."""

import json

from trainer.config.schema import Option, as_dict, options
from trainer.config.sections import JobConfig

USAGE = """\
usage: {program} [--config FILE.toml | --module NAME --config FUNCTION] [--section.key VALUE ...]

Values come from the defaults, then the file, then the flags. A switch takes no value: --section.key turns it on,
--section.no_key off. Older and newer names of torchtitan are understood; `workbench config explain` lists them.
"""


def help_text(program: str) -> str:
    """Return the text of --help: every flag with its type, default and meaning; `program` is the command to show."""
    lines, section = [USAGE.format(program=program)], ""
    for key, option in options().items():
        if (head := key.partition(".")[0]) != section:
            section = head
            lines.append(f"\n{section}")
        lines += [f"  {flag(option)}  (default: {default(option)})", f"        {option.help}"]
    return "\n".join(lines)


def flag(option: Option) -> str:
    """Return the text of a flag in --help, such as `--training.steps INT`."""
    section, _, name = option.key.partition(".")
    if option.kind is bool:
        return f"--{option.key} | --{section}.no_{name}"
    return f"--{option.key} {option.metavar}"


def default(option: Option) -> str:
    """Return the default of an option as the help text shows it."""
    return "None" if option.default is None else _toml_value(option.default)


def toml(config: JobConfig) -> str:
    """Return the configuration as TOML; keys without a value are comments."""
    blocks = []
    for section, values in as_dict(config).items():
        lines = [f"# {name} is not set" if v is None else f"{name} = {_toml_value(v)}" for name, v in values.items()]
        blocks.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(blocks)


def _toml_value(value: object) -> str:
    """Return a value as TOML; strings, numbers, booleans and lists are the same in JSON and TOML."""
    return json.dumps(value)
