"""Submit a job to a cluster's scheduler: Slurm, Kubernetes or TorchX.

Slurm and Kubernetes run `workbench launch` on every node; TorchX runs torchrun.
"""

import json
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from analyzers.errors import MissingExtra
from workbench.command_options.options import Scheduler
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.launch.plan import Plan, Request
from workbench.remote.urls import without_credentials

_RENDEZVOUS_PORT = 29500
_LAST_FILES_S = 120
"""The seconds that a pod has from SIGTERM to its end, in which its last files are sent."""


def manifest(job: Plan, arguments: Sequence[str]) -> str:
    """Return the Kubernetes manifest (YAML) of a job; `arguments` go to `workbench launch` on each node.

    Raises:
        UsageProblem: There is no image, or nowhere to write the files of the pods.
    """
    request = job.request
    if not request.image:
        raise UsageProblem(
            "--scheduler kubernetes: no image", "give --image with an image that has workbench and torch"
        )
    if not request.collect:
        raise UsageProblem(
            "--scheduler kubernetes: the disk of a pod is gone with the pod, and all files with it",
            "give --collect with a URL that the pods can write to, such as s3://BUCKET/RUN",
        )
    name = f"workbench-{secrets.token_hex(3)}"
    return "---\n".join((network(name), workers(name, request, arguments)))


def command(words: Sequence[str]) -> str:
    """Return a command as a YAML list; each word is quoted as in JSON."""
    # Kubernetes would replace $(NAME) by the value of a variable.
    return json.dumps([word.replace("$(", "$$(") for word in words])


def network(name: str) -> str:
    """Return the YAML of the headless Service that gives each pod of the job `name` a host name.

    The launchers find the first pod, which hosts the rendezvous, by its host name.
    """
    # Pods that are not ready need names too: launchers look for the first pod before it is ready.
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{job-name: {name}}}
"""


def workers(name: str, request: Request, arguments: Sequence[str]) -> str:
    """Return the YAML of the Job `name` with a launcher on each node; its first pod hosts the rendezvous.

    `arguments` go to each launcher. This function adds the address of the rendezvous.
    """
    options = ["--rdzv-endpoint", f"{name}-0.{name}:{_RENDEZVOUS_PORT}"]
    # /dev/shm of a container has 64 MiB by default, too little for the workers of a data loader.
    return f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {request.nnodes}
  parallelism: {request.nnodes}
  backoffLimit: 0
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {_LAST_FILES_S}
      containers:
      - name: node
        image: {json.dumps(request.image)}
        command: {command(["workbench", "launch", *options, *arguments])}
        # resources: {{limits: {{nvidia.com/gpu: {request.nproc or 8}}}}}
        volumeMounts:
        - {{name: shared-memory, mountPath: /dev/shm}}
      volumes:
      - name: shared-memory
        emptyDir: {{medium: Memory}}
"""


def shell(job: Plan) -> str:
    """Return the text that is submitted to the scheduler: an sbatch script, a manifest, or a torchx command line."""
    if job.request.scheduler == Scheduler.KUBERNETES:
        return manifest(job, [*options(job.request), *_job_arguments(job.request)])
    return _sbatch_script(job) if job.request.scheduler == Scheduler.SLURM else _torchx_command(job)


def submit(job: Plan) -> None:
    """Submit the job to the scheduler, and print the scheduler's reply.

    Raises:
        WorkbenchError: The scheduler's command is not installed, or rejects the job.
    """
    if job.request.scheduler == Scheduler.SLURM:
        job.logs.mkdir(parents=True, exist_ok=True)  # Slurm does not make it, and the job would fail without a log
        answer = _run_submission(["sbatch", "--parsable"], _sbatch_script(job))
        note(f"submitted as job {answer.partition(';')[0]}; follow it with: workbench watch {job.folder}")
    elif job.request.scheduler == Scheduler.KUBERNETES:
        note(_run_submission(["kubectl", "apply", "-f", "-"], shell(job)))
        note(f"the files of all nodes come to: workbench inspect {without_credentials(job.request.collect or '')}")
    else:
        note(_run_submission(shlex.split(_torchx_command(job))))


def _run_submission(command: Sequence[str], script: str | None = None) -> str:
    """Run the scheduler's command and return its output; `script` is passed to the command's standard input.

    Raises:
        MissingExtra: The command is not installed.
        UsageProblem: The scheduler rejects the job.
    """
    name = command[0]
    if shutil.which(name) is None:
        raise MissingExtra(f"no {name} on this machine", "submit from a login node, or add --dry-run to see the job")
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UsageProblem(f"{name} refused the job: {why}", "add --dry-run to print the job, and edit it")
    return done.stdout.strip()


def _sbatch_script(job: Plan) -> str:
    """Return a Slurm batch script that starts one launcher on each node; the first node hosts the rendezvous."""
    return f"""\
#!/bin/bash
#SBATCH --job-name=workbench
#SBATCH --nodes={job.request.nnodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output={job.logs}/slurm_%j.log
# sbatch takes partition, account, time and devices from SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT
# and SBATCH_GPUS_PER_NODE.
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
rendezvous=$head:$((20000 + SLURM_JOB_ID % 10000))  # two jobs may share a head node
srun {shlex.join(launcher(job.request))} --rdzv-endpoint "$rendezvous" {shlex.join(_job_arguments(job.request))}
"""


def launcher(request: Request) -> list[str]:
    """Return the `workbench launch` command line to run on each node, with the options of `request`."""
    return [sys.executable, "-m", "workbench", "launch", *options(request)]


def options(request: Request) -> list[str]:
    """Return the options of `workbench launch` for each node.

    If the user gave no number of processes, each node chooses it from its own devices.
    """
    values = {
        "--config": request.config,
        "--module": request.module,
        "--incident": request.incident,
        "--nproc": request.nproc,
        "--nnodes": request.nnodes,
        "--max-restarts": request.max_restarts,
        "--trainer": request.trainer,
        "--timeout": request.timeout,
        "--profile-step": request.profile_step,
        "--collect": request.collect,
    }
    words = [word for name, value in values.items() if value is not None for word in (name, str(value))]
    switches = {
        "--find-holders": request.find_holders,
        "--no-recorders": not request.recorders,
        "--no-watch": not request.watch,
    }
    return words + [name for name, is_set in switches.items() if is_set]


def _job_arguments(request: Request) -> list[str]:
    """Return the words after the launcher's options: configuration overrides, or `--` and the user's command."""
    return [*request.overrides, *(["--", *request.command] if request.command else [])]


def _torchx_command(job: Plan) -> str:
    """Return the command line that submits the job to TorchX as a `dist.ddp` component.

    The user's `.torchxconfig` names the cluster.

    Raises:
        UsageProblem: The job runs a command and not a Python module.
    """
    if job.module is None:
        raise UsageProblem("TorchX starts a module, not a command", "give --trainer MODULE, or use --scheduler slurm")
    settings = ",".join(f"{name}={value}" for name, value in sorted(job.environment.items()))
    options = [
        "-j",
        f"{job.request.nnodes}x{job.nproc}",
        "--max_retries",
        str(job.request.max_restarts),
        "--env",
        settings,
    ]
    return shlex.join(["torchx", "run", "dist.ddp", *options, "-m", job.module, "--", *job.command])
