"""The commands `workbench config show`, `explain` and `diff`."""

from pathlib import Path

import typer

from workbench.command_options import options as opt
from workbench.console import clean

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""The Click settings of commands that pass options such as `--section.key value` on to the trainer."""

config_app = typer.Typer(help="Show and explain the configuration of the trainer.", no_args_is_help=True)


def file_and_overrides(words: list[str]) -> tuple[Path | None, list[str]]:
    """Split the words `[FILE] [--section.key value ...]` into the file, if there is one, and the overrides.

    Click itself would take the value of the first unknown option for the file.
    """
    if words and not words[0].startswith("--"):
        return Path(words[0]), words[1:]
    return None, words


def source_and_overrides(words: list[str], command: str) -> tuple[Path | None, list[str]]:
    """Return the file, if one is given, and the overrides: from the words of the command line, then the environment.

    The environment variables CONFIG_FILE, MODULE with CONFIG, and COMM_MODE count if the words do not set them, as for
    `launch`.
    """
    from workbench.commands.config import with_environment

    return with_environment(*file_and_overrides(words), command)


@config_app.command("show", context_settings=PASS_ON, options_metavar="[FILE] [--section.key value ...]")
def config_show(ctx: typer.Context, as_json: opt.Json = False) -> None:
    """Print the resolved configuration: defaults, then FILE, then --section.key value.

    CONFIG_FILE, MODULE with CONFIG, and COMM_MODE in the environment count where the command line says nothing.
    """
    from workbench.commands.config import show

    print(clean(show(*source_and_overrides(ctx.args, "config show"), as_json=as_json)))


@config_app.command("explain", context_settings=PASS_ON, options_metavar="[FILE] [--section.key value ...]")
def config_explain(ctx: typer.Context, as_json: opt.Json = False) -> None:
    """Say whether each key is honoured, translated from an older name, ignored or refused (and why), or unknown.

    Ignored keys do not change a run's outcome; keys that would change it are refused. CONFIG_FILE, MODULE with CONFIG,
    and COMM_MODE in the environment count where the command line says nothing.
    """
    from workbench.commands.config import explain

    print(clean(explain(*source_and_overrides(ctx.args, "config explain"), as_json=as_json)))


@config_app.command("diff", context_settings=PASS_ON, options_metavar="A B [--section.key value ...]")
def config_diff(ctx: typer.Context, a: opt.ConfigSource, b: opt.ConfigSource, as_json: opt.Json = False) -> None:
    """Show the keys whose resolved values differ between two files, or between the runs of two folders."""
    from workbench.commands.config import diff

    print(clean(diff(a, b, ctx.args, as_json=as_json)))
