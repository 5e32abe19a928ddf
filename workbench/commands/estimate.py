"""`workbench estimate`: memory before the run, rehearsed by the trainer in a process of its own."""

from collections.abc import Iterator
from pathlib import Path

from analyzers.report import Evidence, Finding, Report, Severity, Verdict, ranked, status_of, tool_version
from analyzers.run import Run
from analyzers.words import share, size
from trainer.config import ConfigError, JobConfig, load
from workbench.commands.trainer_process import ask_trainer
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, own_environment, trainer_arguments
from workbench.trainer_answers import EstimateData, Option, Rehearsed

NEAR_LIMIT = 0.9
UNCOUNTED = "what no tensor holds: the device's context, libraries' workspaces, fragmentation (often 1 to 3 GiB)"


def estimate(request: Request, limit: int | None) -> Report[EstimateData]:
    """What each rank of the job would hold; with a limit also whether it fits, and what to change if not.

    Raises:
        WorkbenchError: The configuration does not hold, or training is not installed.
    """
    arguments = trainer_arguments(request)
    found = rehearse(request, arguments)
    tight = limit is not None and found.peak_bytes >= NEAR_LIMIT * limit
    options = [
        Option(" ".join(change), rehearse(request, (*arguments, *change)).peak_bytes)
        for change in (changes(loaded(arguments), found) if tight else ())
    ]
    data = EstimateData(
        **{name: getattr(found, name) for name in Rehearsed.__struct_fields__},
        limit_bytes=limit,
        options=sorted(options, key=lambda option: option.peak_bytes),
    )
    findings = ranked(limit_findings(data))
    return Report(
        schema="workbench.estimate/1",
        version=tool_version(),
        inputs=[],
        verdict=verdict(data, findings),
        findings=findings,
        data=data,
    )


def subject(request: Request) -> Run:
    """What the report is about, for its heading."""
    return Run(Path(request.config or "the defaults"), ())


def rehearse(request: Request, arguments: tuple[str, ...]) -> Rehearsed:
    loaded(arguments)
    ranks = request.processes_per_node * request.nnodes
    world = {"WORLD_SIZE": str(ranks), "CUDA_VISIBLE_DEVICES": ""}
    return ask_trainer("trainer.estimate", arguments, Rehearsed, own_environment(request) | world)


def loaded(arguments: tuple[str, ...]) -> JobConfig:
    """The configuration; also one that the trainer would refuse to train."""
    try:
        return load(None, arguments)
    except ConfigError as error:
        raise UsageProblem(error.message, error.hint) from error


def changes(config: JobConfig, found: Rehearsed) -> Iterator[tuple[str, ...]]:
    """Settings that would take less memory."""
    batch, copies = config.training.local_batch_size, found.mesh["dp_replicate"]
    if config.activation_checkpoint.mode != "full":
        yield "--activation_checkpoint.mode", "full"
    if batch > 1:
        yield "--training.local_batch_size", str(batch // 2)
    if copies > 1:
        names = "--parallelism.data_parallel_replicate_degree", "--parallelism.data_parallel_shard_degree"
        yield names[0], "1", names[1], "-1"


def limit_findings(data: EstimateData) -> Iterator[Finding]:
    """Whether the fullest rank stays below the limit."""
    if data.limit_bytes is None or data.peak_bytes < NEAR_LIMIT * data.limit_bytes:
        return
    over = data.peak_bytes > data.limit_bytes
    fullest = max(data.ranks, key=lambda rank: rank.peak_bytes)
    name, held = max(fullest.categories.items(), key=lambda item: item[1])
    yield Finding(
        id="estimate.oom" if over else "estimate.near_limit",
        severity=Severity.ERROR if over else Severity.WARNING,
        title=f"{size(data.peak_bytes)} {'do not fit' if over else 'hardly fit'} into {size(data.limit_bytes)}",
        why=f"{name.replace('_', ' ')}: {share(held, data.peak_bytes)} of the peak,"
        f" which comes in {fullest.peak_window}.",
        next=advice(data),
        ranks=[fullest.first_rank],
        evidence=[Evidence(text=f"{option.setting}: {size(option.peak_bytes)}") for option in data.options],
        confidence=0.7 if data.assumptions else 0.9,
    )


def advice(data: EstimateData) -> str:
    """The first setting that fits, else the one that takes least."""
    if not data.options:
        return "Take more ranks to shard over, or a smaller model or sequence."
    best = data.options[0]
    fits = data.limit_bytes is not None and best.peak_bytes < NEAR_LIMIT * data.limit_bytes
    return f"{best.setting}: {size(best.peak_bytes)}" + ("." if fits else ", which is not enough: take more ranks too.")


def verdict(data: EstimateData, findings: list[Finding]) -> Verdict:
    mesh = " x ".join(f"{name} {degree}" for name, degree in data.mesh.items() if degree > 1) or "one rank"
    fits = f" of {size(data.limit_bytes)}" if data.limit_bytes else ""
    return Verdict(
        status=status_of(findings),
        kind=findings[0].id.removeprefix("estimate.") if findings else "healthy",
        ranks=findings[0].ranks if findings else [],
        sentence=f"{data.model} on {data.world_size} ranks ({mesh}) peaks at {size(data.peak_bytes)}{fits} a rank",
        confidence=0.7 if data.assumptions else 0.9,
        missing=[UNCOUNTED, *data.assumptions] + ([] if data.limit_bytes else ["--limit: whether that fits"]),
    )
