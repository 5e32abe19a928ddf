"""The possible values of options and arguments, and how shells complete them.

File names are completed by the shell itself, because a shell quotes them. Typer would insert them unquoted, so a file
name in a downloaded folder could become a command.
"""

from collections.abc import Callable

INCIDENTS = (
    "healthy",
    "oom",
    "leak",
    "stuck",
    "stuck_sleep",
    "stuck_gil",
    "skip",
    "mismatch_shape",
    "mismatch_type",
    "kill",
    "deadlock",
    "straggler",
    "straggler_data",
    "straggler_gc",
    "nan",
)
MODELS = ("llama3", "llama4", "qwen3", "qwen3_moe", "deepseek_v3")
PLANNED_DEVICES = ("a100", "h100", "h200", "b200", "mi300x", "cpu")


def one_of(*values: str) -> Callable[[str], list[str]]:
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]
