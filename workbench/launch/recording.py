"""Convert the launcher's options to environment variables that configure the recorders in a command after `--`."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import JobConfig, explain, load
from workbench.errors import UsageProblem, trainer_errors_as_ours
from workbench.python_path import PACKAGE_ROOT

if TYPE_CHECKING:
    from workbench.launch.plan import Request

VARIABLE = "WORKBENCH_RECORD"
"""The environment variable that tells the start-up hook in each Python process what to record, as JSON."""
START_UP = PACKAGE_ROOT / "workbench" / "recorders" / "startup"
"""The folder whose module `sitecustomize` attaches the recorders when Python imports it at start-up."""
_USED_KEYS = (
    *("job.dump_folder", "comm.train_timeout_seconds", "comm.trace_buf_size", "profiling.enable_profiling"),
    *("profiling.save_traces_folder", "profiling.profile_freq", "profiling.profiler_active"),
    "profiling.profiler_warmup",
)
"""The keys of our trainer's configuration that also apply to a command after `--`."""


def recording_config(request: "Request") -> JobConfig:
    """Return our trainer's configuration with the launcher's overrides; the recorders use only its keys `_USED_KEYS`.

    Raises:
        UsageProblem: An option only applies to our trainer and has no effect on a command after `--`.
    """
    given = {"--config": request.config, "--module": request.module, "--incident": request.incident}
    if without_effect := [name for name, value in given.items() if value]:
        raise _no_effect(without_effect[0], "options of the command follow it: workbench launch -- python train.py ...")
    with trainer_errors_as_ours():
        reports, config = explain(None, request.overrides), load(None, request.overrides)
    for report in reports:
        if report.key not in _USED_KEYS:
            raise _no_effect(f"--{report.source or report.key}", f"these have: {', '.join(_USED_KEYS)}")
    return config


def _no_effect(option: str, hint: str) -> UsageProblem:
    return UsageProblem(f"{option} has no effect on a command after --", hint)


def recording(request: "Request", config: JobConfig) -> dict[str, object]:
    """Return the settings of the recorders for a command after `--`; its Python processes read them at start-up.

    They are JSON values, with the field names of `workbench.recorders.startup.settings.Settings`.
    """
    profiling = config.profiling
    # Only if the user gave it: our default must not replace the timeout of the script.
    timeout_key = any("train_timeout" in word for word in request.overrides)
    timeout_s = request.timeout or (config.comm.train_timeout_seconds if timeout_key else None)
    return {
        "folder": str(Path(config.job.dump_folder).resolve()),
        "timeout_s": timeout_s,
        "profile_step": request.profile_step,
        "find_holders": request.find_holders,
        "profile_freq": profiling.profile_freq if profiling.enable_profiling else None,
        "profiler_active": profiling.profiler_active,
        "profiler_warmup": profiling.profiler_warmup,
        "traces": profiling.save_traces_folder,
    }


def recorder_settings(recorded: dict[str, object]) -> dict[str, str]:
    """Return the environment variables that attach the recorders to every Python process of a job.

    `recorded` has the settings of the recorders, from the function `recording`.
    """
    given = os.environ.get("PYTHONPATH")
    # First, because Python imports only one `sitecustomize`.
    entries = [str(START_UP), *([given] if given else [])]
    return {"PYTHONPATH": os.pathsep.join(entries), VARIABLE: json.dumps(recorded | {"root": str(PACKAGE_ROOT)})}
