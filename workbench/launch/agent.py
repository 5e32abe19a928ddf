"""The engine: torchrun's elastic agent in this process, or a foreign command as a child."""

import contextlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.console import note
from workbench.launch.plan import Plan

NOTICE_SECONDS = 0.5
"""How often the agent looks for dead ranks. It then stops the survivors, who must be asked for dumps before."""


@dataclass
class Outcome:
    """How a job ended: exit status by rank where known, minus the signal for a rank that one killed.

    `logs` is the folder of this launch, one a node; `first_rank` the global rank of its local rank 0, where known.
    """

    status: str
    exit_codes: dict[int, int] = field(default_factory=dict)
    logs: Path | None = None
    first_rank: int | None = None


def start(plan: Plan) -> Outcome:
    """Run the job to its end."""
    with environment(plan.environment):
        return elastic(plan) if plan.module else command(plan)


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def command(plan: Plan) -> Outcome:
    """A foreign command: what it returns is rank 0's status, for want of a better one."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    try:
        status = subprocess.run(plan.command, check=False).returncode
    except KeyboardInterrupt:
        return Outcome("interrupted")
    return Outcome("failed" if status else "completed", {0: status} if status else {})


def quieten(prefix: str) -> None:
    """The agent's own log lines tell in its words what we tell in ours; torch gives each of its loggers a level."""
    for name in [prefix, *logging.root.manager.loggerDict]:
        if name.startswith(prefix):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def elastic(plan: Plan) -> Outcome:
    """Our trainer, or another module, under the elastic agent."""
    warnings.filterwarnings("ignore")
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    quieten("torch.distributed.elastic")
    written = DefaultLogsSpecs(log_dir=str(plan.logs), redirects=Std.ALL, tee=Std.NONE)
    config = LaunchConfig(
        min_nodes=plan.nnodes,
        max_nodes=plan.nnodes,
        nproc_per_node=plan.nproc,
        run_id="workbench",
        rdzv_backend="c10d",
        rdzv_endpoint=plan.rdzv_endpoint,
        max_restarts=plan.max_restarts,
        monitor_interval=NOTICE_SECONDS,
        logs_specs=written,
    )
    try:
        elastic_launch(config, sys.executable)("-u", "-m", str(plan.module), *plan.command)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        first = next((rank - failure.local_rank for rank, failure in error.failures.items()), None)
        return Outcome("failed", codes, logs_of(written), first)
    except (RendezvousError, DistError) as error:  # the node that kept the meeting place has ended, or never came
        note(f"the launchers of the nodes cannot reach each other at {plan.rdzv_endpoint} ({type(error).__name__})")
        return Outcome("failed", logs=logs_of(written))
    except (KeyboardInterrupt, SignalException):
        return Outcome("interrupted")
    return Outcome("completed")


def logs_of(specs: Any) -> Path | None:
    """The folder that the agent has made for this launch; it ends in random letters."""
    made = getattr(specs, "_run_log_dir", None)
    return Path(made) if made else None
