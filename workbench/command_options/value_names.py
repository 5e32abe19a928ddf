"""The values that options and arguments take, and how shells complete them.

Completing names of files is left to the shell: it quotes them, whereas Typer inserts them as they are, so that a name
in a downloaded folder could become a command.
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
DOCUMENTS = (
    "memory",
    "hang",
    "trace",
    "steps",
    "logs",
    "incident",
    "compare",
    "parity",
    "bisect",
    "estimate",
    "plan",
    "proof",
    "rerun",
    "tokens",
    "doctor",
    "capabilities",
)
"""The names that `workbench schema` knows; its module imports all analyzers, which takes longer than a key press."""
MODELS = ("llama3", "llama4", "qwen3", "qwen3_moe", "deepseek_v3")
PLANNED_DEVICES = ("a100", "h100", "h200", "b200", "mi300x", "cpu")


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Return a function that completes the beginning of a word to those of `values` that begin with it."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]
