"""Implement `workbench estimate --script`: estimate the memory of any training script before it runs for real.

The script runs in a separate process, under limits, on tensors without values, to the end of its second step.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from analyzers.child import limit_self, memory_of_machine
from analyzers.errors import InputError, MissingExtra
from analyzers.report import Report
from workbench.commands.estimate import estimate_report
from workbench.errors import UsageProblem
from workbench.launch.job_command import JobCommand, python_command
from workbench.launch.plan import Request
from workbench.python_path import command, environment
from workbench.trainer_answers import EstimateData, Refusal, TrainerEstimate

SECONDS = 900
_ADDRESS_SPACE_OF_TORCH = 16 << 30
"""The bytes of address space that the libraries of torch map, without using memory for all of them."""
_DEVICES = ("cuda", "cpu")


def estimate_script(
    script: Path, arguments: Sequence[str], request: Request, device: str, limit: int | None
) -> Report[EstimateData]:
    """Return a report on the memory that rank 0 of a script will need on a device (cuda or cpu).

    Raises:
        UsageProblem: Options contradict each other.
        InputError: There is no such script, or it cannot run on tensors without values.
    """
    if request.config or request.module:
        raise UsageProblem("--script and --config name two different trainings", "give one of them")
    if device not in _DEVICES:
        raise UsageProblem(f"--device {device}: no such kind of device", f"give {' or '.join(_DEVICES)}")
    job = python_command(("python", str(script)))
    ranks = (request.nproc or 1) * request.nnodes
    found = rehearsed(job, arguments, device, ranks)
    if isinstance(found, Refusal):
        raise InputError(found.error, found.hint)
    return estimate_report(found, limit, [])


def rehearsed(job: JobCommand, arguments: Sequence[str], device: str, ranks: int) -> TrainerEstimate | Refusal:
    """Run the script on tensors without values in another process; return its memory, or the reason why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        result, output = Path(folder, "result.json"), Path(folder, "output.txt")
        words = command("trainer.estimate.script", str(result), device, str(ranks), str(job.source), *arguments)
        status = run(words, environment() | _rank_variables(job, ranks), output)
        if result.exists() and (content := result.read_bytes()):
            if content.startswith(b'{"error"'):
                return msgspec.json.decode(content, type=Refusal)
            return msgspec.json.decode(content, type=TrainerEstimate)
        return unanswered(job, status, output.read_text(errors="replace"))


def _rank_variables(job: JobCommand, ranks: int) -> dict[str, str]:
    """Return the environment variables for a script, which hide all CUDA devices.

    If the script needs them, the variables that torchrun sets for rank 0 are included.
    """
    variables = {"CUDA_VISIBLE_DEVICES": ""}
    if ranks == 1 and not job.needs_ranks:
        return variables
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    # Scripts read the address, but nothing listens there: the process group is fake.
    return variables | rank | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def run(words: Sequence[str], variables: dict[str, str], output: Path) -> int | None:
    """Run a command under limits, and write its output to a file; return its exit status, or None after a timeout."""
    # The limit counts address space, of which the libraries of torch map much more than they use.
    limits = partial(limit_self, memory_of_machine() + _ADDRESS_SPACE_OF_TORCH, SECONDS)
    with output.open("wb") as file, subprocess.Popen(
        words, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        # A group of its own, so that processes that the script leaves behind can be killed.
        start_new_session=True, preexec_fn=limits,  # noqa: PLW1509 - no other thread runs yet
    ) as process:  # fmt: skip
        try:
            return process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill_group(process.pid)


def _kill_group(group: int) -> None:
    """Kill the processes of a process group that a script has not ended."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def unanswered(job: JobCommand, status: int | None, output: str) -> Refusal:
    """Return the reason why a script gave no estimate, from its exit status and output.

    Raises:
        MissingExtra: torch is not installed.
    """
    if "No module named 'torch'" in output:
        raise MissingExtra("this needs torch", "pip install 'torch-workbench[train]'")
    if status is None or status == -signal.SIGXCPU:
        return Refusal(f"{job.source}: no second step after {SECONDS} s", "give it fewer data, or a smaller model")
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it wrote nothing")
    why = f"signal {-status}" if status < 0 else f"exit status {status}"
    return Refusal(f"{job.source}: the process ended ({why}): {last[:300]}", "see whether it runs without the estimate")
