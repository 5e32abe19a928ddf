"""Jobs that a cluster's scheduler starts: under Slurm this launcher on every node, under TorchX its torchrun."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from analyzers.errors import MissingExtra
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.launch.plan import Plan, Request
from workbench.options import Scheduler


def shell(request: Request, planned: Plan) -> str:
    """What is handed to the scheduler."""
    return sbatch_script(request, planned) if request.scheduler == Scheduler.SLURM else torchx_command(planned)


def submit(request: Request, planned: Plan) -> None:
    """Hand the job over.

    Raises:
        WorkbenchError: The scheduler's command is not here, or refuses the job.
    """
    if request.scheduler == Scheduler.SLURM:
        planned.logs.mkdir(parents=True, exist_ok=True)  # Slurm does not make it, and the job would fail unseen
        told = handed_over(["sbatch", "--parsable"], sbatch_script(request, planned))
        note(f"submitted as job {told.partition(';')[0]}; follow it with: workbench watch {planned.folder}")
    else:
        note(handed_over(shlex.split(torchx_command(planned))))


def handed_over(command: Sequence[str], script: str | None = None) -> str:
    """What the scheduler's command answers."""
    name = command[0]
    if shutil.which(name) is None:
        raise MissingExtra(f"no {name} on this machine", "submit from a login node, or add --dry-run to see the job")
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise UsageProblem(f"{name} refused the job: {why}", "add --dry-run to see the job, change it and submit that")
    return done.stdout.strip()


def sbatch_script(request: Request, planned: Plan) -> str:
    """One launcher a node, each alone on it; the first node's keeps the store where they meet."""
    return f"""\
#!/bin/bash
#SBATCH --job-name=workbench
#SBATCH --nodes={request.nnodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output={planned.logs}/slurm_%j.log
# sbatch takes partition, account, time and devices from SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT
# and SBATCH_GPUS_PER_NODE.
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
meeting=$head:$((20000 + SLURM_JOB_ID % 10000))  # two jobs may share a head node
srun {shlex.join(launcher(request))} --rdzv-endpoint "$meeting" {shlex.join(passed_on(request))}
"""


def launcher(request: Request) -> list[str]:
    """This command as each node runs it; how many processes a node takes is best known there."""
    given = {
        "--config": request.config,
        "--module": request.module,
        "--incident": request.incident,
        "--nproc": request.nproc,
        "--nnodes": request.nnodes,
        "--max-restarts": request.max_restarts,
        "--trainer": request.trainer,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [sys.executable, "-m", "workbench", "launch", *options]


def passed_on(request: Request) -> list[str]:
    """What is not this launcher's."""
    return [*(["--"] if request.foreign else []), *request.overrides]


def torchx_command(planned: Plan) -> str:
    """TorchX's distributed component; which cluster it is, .torchxconfig says."""
    if planned.module is None:
        raise UsageProblem("TorchX starts a module, not a command", "give --trainer MODULE, or use --scheduler slurm")
    settings = ",".join(f"{name}={value}" for name, value in sorted(planned.environment.items()))
    job = ["-j", f"{planned.nnodes}x{planned.nproc}", "--max_retries", str(planned.max_restarts), "--env", settings]
    return shlex.join(["torchx", "run", "dist.ddp", *job, "-m", planned.module, "--", *planned.command])
