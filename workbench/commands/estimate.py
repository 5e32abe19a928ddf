"""Implement `workbench estimate`: predict how much memory each rank of a job will need, and whether it fits.

Neither the devices nor the data of the job are needed.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from analyzers.child import limit_self, memory_of_machine
from analyzers.errors import InputError, MissingExtra
from analyzers.memory.evidence import in_words
from analyzers.report import Evidence, Finding, Report, Severity, Verdict, ranked, status_of
from analyzers.run import Run
from analyzers.words import quantity, share, size
from trainer.config import JobConfig, load
from workbench.documents import Alternative, EstimateData, Refusal, TrainerEstimate
from workbench.errors import UsageProblem, trainer_errors_as_ours
from workbench.launch.job_command import JobCommand, python_command
from workbench.launch.plan import Request, own_environment, trainer_arguments
from workbench.present.tables.estimate import window_words
from workbench.python_path import command, environment

Answer = TypeVar("Answer")


def ask_trainer(module: str, arguments: Sequence[str], kind: type[Answer], environment: Mapping[str, str]) -> Answer:
    """Run `python -m MODULE ARGUMENTS`, and return the JSON that it prints, decoded as type `kind`.

    Raises:
        UsageProblem: The trainer reports an error, such as a wrong key.
        MissingExtra: torch is not installed.
    """
    done = subprocess.run(
        command(module, *arguments),
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return msgspec.json.decode(done.stdout, type=kind)
    if "No module named 'torch'" in done.stderr:
        raise MissingExtra("this needs torch", "pip install 'torch-workbench[train]'")
    message, _, hint = done.stderr.partition("error: ")[2].partition("\nhint: ")
    raise UsageProblem(message or done.stderr.strip()[-300:], hint.strip() or "try it with `workbench config explain`")


NEAR_LIMIT = 0.9
_NOT_COUNTED = (
    "memory that is in no tensor: the device's context, workspaces of libraries, fragmentation (often 1 to 3 GiB)"
)
_NOT_COUNTED_ON_CPU = (
    "memory that is in no tensor: Python, the code and workspaces of libraries, data in the host's memory"
)


def estimate(request: Request, limit: int | None) -> Report[EstimateData]:
    """Return a report on the memory that each rank will need.

    With a `limit` in bytes, the report says whether the job fits. If it does not fit, or only nearly, the report also
    lists settings that need less memory.

    Raises:
        WorkbenchError: The configuration is wrong, or the packages for training are not installed.
    """
    arguments = trainer_arguments(request)
    found = trainer_estimate(request, arguments)
    tight = limit is not None and found.peak_bytes >= NEAR_LIMIT * limit
    changes = _smaller_settings(configuration(arguments), found) if tight else ()
    alternatives = [
        Alternative(" ".join(change), trainer_estimate(request, (*arguments, *change)).peak_bytes) for change in changes
    ]
    return _estimate_report(found, limit, alternatives)


def _estimate_report(
    found: TrainerEstimate, limit: int | None, alternatives: list[Alternative]
) -> Report[EstimateData]:
    """Return the report on an estimate; `alternatives` are changed settings and the memory that they need."""
    data = EstimateData(
        **{name: getattr(found, name) for name in TrainerEstimate.__struct_fields__},
        limit_bytes=limit,
        options=sorted(alternatives, key=lambda alternative: alternative.peak_bytes),
    )
    findings = ranked(limit_findings(data))
    return Report(
        schema="workbench.estimate/1",
        inputs=[],
        verdict=verdict(data, findings),
        findings=findings,
        data=data,
    )


def subject(request: Request, script: Path | None = None) -> Run:
    """Return a `Run` without files, at the path of the configuration or script; a report needs it for its heading."""
    return Run(script or Path(request.config or "the defaults"), ())


def trainer_estimate(request: Request, arguments: tuple[str, ...]) -> TrainerEstimate:
    """Return the memory that a job of our trainer would need, measured in a step on tensors without values.

    The step runs in another process. `arguments` are the trainer's arguments.
    """
    configuration(arguments)
    ranks = request.processes_per_node * request.nnodes
    world = {"WORLD_SIZE": str(ranks), "CUDA_VISIBLE_DEVICES": ""}
    return ask_trainer("trainer.estimate", arguments, TrainerEstimate, own_environment(request) | world)


def configuration(arguments: tuple[str, ...]) -> JobConfig:
    """Return the configuration; settings that the trainer refuses are accepted here.

    Raises:
        UsageProblem: A key or a value is wrong.
    """
    with trainer_errors_as_ours():
        return load(None, arguments)


def _smaller_settings(config: JobConfig, found: TrainerEstimate) -> Iterator[tuple[str, ...]]:
    """Yield changes of the configuration, as trainer flags; each of them reduces memory.

    `found` is the estimate for the unchanged configuration.
    """
    in_validation = max(found.ranks, key=lambda rank: rank.peak_bytes).peak_window == "eval"
    section, copies = "validation" if in_validation else "training", found.mesh["dp_replicate"]
    batch = config.validation.local_batch_size if in_validation else config.training.local_batch_size
    if config.activation_checkpoint.mode != "full" and not in_validation:
        yield "--activation_checkpoint.mode", "full"
    if batch > 1:
        yield f"--{section}.local_batch_size", str(batch // 2)
    if copies > 1:
        names = "--parallelism.data_parallel_replicate_degree", "--parallelism.data_parallel_shard_degree"
        yield names[0], "1", names[1], "-1"


def limit_findings(data: EstimateData) -> Iterator[Finding]:
    """Yield a finding if the rank with the highest peak exceeds the memory limit or is close to it."""
    if data.limit_bytes is None or data.peak_bytes < NEAR_LIMIT * data.limit_bytes:
        return
    over = data.peak_bytes > data.limit_bytes
    fullest = max(data.ranks, key=lambda rank: rank.peak_bytes)
    category, held = max(fullest.categories.items(), key=lambda item: item[1])
    peak, limit = size(data.peak_bytes), size(data.limit_bytes)
    yield Finding(
        id="estimate.oom" if over else "estimate.near_limit",
        severity=Severity.ERROR if over else Severity.WARNING,
        title=f"the estimated peak of {peak} {'does not fit into' if over else 'is close to the limit of'} {limit}",
        why=f"{share(held, data.peak_bytes)} of the peak is {in_words(category)}. It is reached in"
        f" {_place_of_peak(data)}.",
        next=advice(data),
        ranks=[fullest.first_rank],
        evidence=[Evidence(text=f"{option.setting}: {size(option.peak_bytes)}") for option in data.options],
        confidence=0.7 if data.assumptions else 0.9,
    )


def _place_of_peak(data: EstimateData) -> str:
    fullest = max(data.ranks, key=lambda rank: rank.peak_bytes)
    words = window_words(fullest.peak_window)
    return f"{words} ({fullest.peak_line})" if fullest.peak_line else words


def advice(data: EstimateData) -> str:
    if data.device:
        return _advice_on_script(data)
    if not data.options:
        return "Use a smaller batch, sequence or model, or shard over more ranks."
    best = data.options[0]
    fits = data.limit_bytes is not None and best.peak_bytes < NEAR_LIMIT * data.limit_bytes
    return f"Set {best.setting}: the estimated peak is then {size(best.peak_bytes)}" + (
        "." if fits else ", which is still too much: use more ranks too."
    )


def _advice_on_script(data: EstimateData) -> str:
    """Return advice for a script: how to reduce the category that takes most of the memory."""
    categories = data.ranks[0].categories
    if max(categories, key=lambda name: categories[name]) in ("parameters", "gradients", "optimizer_state"):
        return "Shard the model over more ranks (fully_shard), or use an optimizer with less state."
    return "Halve the batch and accumulate the gradients of two, or recompute layers (torch.utils.checkpoint)."


def verdict(data: EstimateData, findings: list[Finding]) -> Verdict:
    """Return the verdict: the highest peak of any rank, and the memory that the estimate does not include."""
    mesh = " x ".join(f"{name} {degree}" for name, degree in data.mesh.items() if degree > 1) or "one rank"
    limit = f" of {size(data.limit_bytes)}" if data.limit_bytes else ""
    ranks = quantity(data.world_size, "rank")
    return Verdict(
        status=status_of(findings),
        kind=findings[0].id.removeprefix("estimate.") if findings else "healthy",
        ranks=findings[0].ranks if findings else [],
        sentence=f"{data.model} on {ranks} ({mesh}) peaks at {size(data.peak_bytes)}{limit} per rank"
        if not data.device
        else f"{data.model} peaks at {size(data.peak_bytes)}{limit} on {data.device}, in {_place_of_peak(data)}",
        confidence=0.7 if data.assumptions else 0.9,
        missing=[_NOT_COUNTED_ON_CPU if data.device == "cpu" else _NOT_COUNTED, *data.assumptions]
        + ([] if data.limit_bytes else ["--limit, to say whether the run fits"]),
    )


# Implement `workbench estimate --script`: estimate the memory of any training script before it runs for real.
#
# The script runs in a separate process, under limits, on tensors without values, to the end of its second step.

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
    return _estimate_report(found, limit, [])


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
