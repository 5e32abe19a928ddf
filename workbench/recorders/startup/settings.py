"""Read the settings that `workbench launch` passes to the recorders in an environment variable."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "WORKBENCH_RECORD"
"""The environment variable that holds the settings as JSON."""
at_start = ""
"""What the variable had when this process was started by the launcher's job: a script may clear its environment."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to record in an unchanged training script, as the options of `workbench launch` say; steps count from 1.

    `traces` is the name of the folder for profiler traces below `folder`. `timeout_s` is set as the timeout of
    collectives if the script sets none. If the launcher knows which timeouts the script sets, `init_timeout_s` is the
    timeout until the first step has ended, and `train_timeout_s` the timeout afterwards. If `record` is False, nothing
    is recorded. `find_holders` looks for what keeps the tensors that each step leaves. `torchtitan` says that the
    script is torchtitan, which needs the patches of `torchtitan_on_cpu` on a CPU.
    """

    folder: Path
    timeout_s: float | None = None
    profile_step: int | None = None
    profile_freq: int | None = None
    profiler_active: int = 1
    profiler_warmup: int = 3
    traces: str = "profile_traces"
    init_timeout_s: float | None = None
    train_timeout_s: float | None = None
    record: bool = True
    find_holders: bool = False
    torchtitan: bool = False

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Settings":
        """Return the settings from `content`, a decoded JSON object; unknown keys are ignored."""
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        return cls(**known | {"folder": Path(content["folder"])})


def run_folder(folder: str | Path | None) -> Path:
    """Return `folder`; None stands for the folder of the run that `workbench launch` started, or else `outputs`."""
    if folder is not None:
        return Path(folder)
    return settings().folder if _given() else Path("outputs")


def settings() -> Settings:
    """Return the settings that the launcher passed to this process in the environment."""
    return Settings.of(json.loads(_given()))


def is_recorded_by_launcher() -> bool:
    """Return whether `workbench launch` started this process and records it."""
    return bool(_given()) and settings().record


def _given() -> str:
    return at_start or os.environ.get(VARIABLE, "")
