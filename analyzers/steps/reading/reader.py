"""Logs of steps -> columns, one row a rank and step in the order they were written.

All files of a chunk are read by one child, one after another.
"""

import gc
from pathlib import Path
from typing import Any

from analyzers import run
from analyzers.steps.reading import console, jsonl, torchtitan_metrics
from analyzers.steps.reading.log_lines import Arrays, Log, Table, content_of

VERSION = 5
READERS = {run.Kind.TENSORBOARD: torchtitan_metrics.read, run.Kind.LOG: console.read}
"""Of all other kinds the JSONL reader tells two apart itself."""


def read(paths: list[Path]) -> tuple[Arrays, dict[str, Any]]:
    """One row a step: `file` numbers `paths`, `attempt` the file's headers; `phase.I`, `cpu.I` and `device.I` are ns of
    `meta.phases[I]`, `tags` is a bit set of `meta.tags`, `seq.I` the last collective of `meta.groups[I]` (-1: unknown).
    `dur_ns` is -1 where the log does not tell it. `meta.files` has headers, torn and damaged, or a problem, for each.
    """
    gc.disable()  # millions of small objects, none of them in a cycle
    table = Table()
    files: list[dict[str, Any]] = []
    for number, path in enumerate(paths):
        try:
            log = one(path)
        except (OSError, EOFError) as error:
            files.append({"headers": [], "problem": str(error)})
            continue
        table.add(number, log.content or content_of(log.lines))
        files.append({"headers": log.headers, "torn": log.torn, "damaged": log.damaged})
    return table.columns(), table.meta() | {"files": files}


def one(path: Path) -> Log:
    kind = run.kind_of(path)
    return READERS.get(kind, jsonl.read)(path) if kind else jsonl.read(path)
