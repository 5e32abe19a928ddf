"""Implement `workbench plan`: find the settings that fit into the memory of a device and train fastest."""

from analyzers.report import Evidence, Finding, Report, Severity, Status, Verdict, status_of
from analyzers.words import percent, quantity, share, size
from workbench.commands.estimate import ask_trainer, configuration
from workbench.documents import PlanData, PlannedSettings
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, own_environment, trainer_arguments

_MODEL_OF_TIME = "the speed is that of a cost model, which ranks settings; its seconds are no promise"
_MARGIN_FOR = (
    "the margin stands for memory that is in no tensor: the context, NCCL, fragmentation, and what an estimate is off"
)
_TIME_UP = (
    "the search ended when its time was up; faster settings may fit: plan again on free cores, or fix some settings"
)
_NO_PLAN_CONFIDENCE, CONFIDENCE = 0.6, 0.8


def plan(request: Request, limit: int, margin: float, device: str, count: int) -> Report[PlanData]:
    """Return a report on the `count` fastest settings that fit into `limit` bytes of memory per rank.

    The fraction `margin` of this memory stays free. `device` is the name of the device whose speed is assumed.

    Raises:
        WorkbenchError: The configuration is wrong, or the packages for training are not installed.
    """
    if not 0 <= margin < 1:
        raise UsageProblem(f"--margin {margin} is no share of the memory", "give a number from 0 to 0.9, such as 0.1")
    arguments = trainer_arguments(request)
    config = configuration(arguments)
    ranks = request.processes_per_node * request.nnodes
    environment = own_environment(request) | {"WORLD_SIZE": str(ranks), "CUDA_VISIBLE_DEVICES": ""}
    wish = (str(limit), str(margin), device, str(count))
    data = ask_trainer("trainer.plan", (*wish, *arguments), PlanData, environment)
    findings = [too_large(data)] if not data.plans and data.complete else []
    is_slow = device != "cpu" and config.training.mixed_precision_param == "float32"
    return Report(
        schema="workbench.plan/1",
        inputs=[],
        verdict=verdict(data, findings),
        findings=[*findings, _computes_in_float32()] if is_slow else findings,
        data=data,
    )


def verdict(data: PlanData, findings: list[Finding]) -> Verdict:
    """Return the verdict, which names the fastest settings that fit, or says that none are known."""
    ranks, limit = quantity(data.world_size, "rank"), size(data.limit_bytes)
    subject = f"{data.model} on {ranks} of {limit}"
    if data.plans:
        best = data.plans[0]
        part = share(best.peak_bytes, data.limit_bytes)
        sentence = f"{subject}: {in_words(best)} peaks at {size(best.peak_bytes)} ({part})"
    else:
        sentence = f"{subject}: " + ("nothing fits" if findings else "nothing that fits was found in time")
    return Verdict(
        status=status_of(findings) if data.plans or findings else Status.UNKNOWN,
        kind="fits" if data.plans else "too_large" if findings else "unknown",
        ranks=[],
        sentence=sentence,
        confidence=CONFIDENCE if data.plans else _NO_PLAN_CONFIDENCE,
        missing=[f"{_MARGIN_FOR} ({percent(data.margin)})", order(data), *([] if data.complete else [_TIME_UP])],
    )


def order(data: PlanData) -> str:
    if data.first_rank < 2:
        return _MODEL_OF_TIME
    within = percent(data.speed_margin)
    return (
        f"{_MODEL_OF_TIME}, and it cannot tell speeds within {within} apart: any of the {data.first_rank} plans of rank"
        " 1 may be the fastest; time a few steps of each"
    )


def too_large(data: PlanData) -> Finding:
    return Finding(
        id="plan.too_large",
        severity=Severity.ERROR,
        title=f"None of the settings that were tried fits into {size(data.usable_bytes)}",
        why=f"Of {quantity(data.candidates, 'choice')} the {data.rehearsed} most promising were tried in a step on"
        f" tensors without values; the smallest peak is {size(data.smallest_bytes)}.",
        next=f"Lower validation.local_batch_size: the validation alone needs {size(data.validation_bytes)}."
        if (data.validation_bytes or 0) > data.usable_bytes
        else "Use more ranks, a shorter sequence (training.seq_len) or a smaller model.",
        evidence=[Evidence(text=f"limit {size(data.limit_bytes)}, margin {percent(data.margin)}")],
        confidence=_NO_PLAN_CONFIDENCE,
    )


def _computes_in_float32() -> Finding:
    """Return the note that the planned job multiplies matrices in float32, which few jobs on GPUs do on purpose."""
    return Finding(
        id="plan.float32",
        severity=Severity.INFO,
        title="The job computes in float32",
        why="training.mixed_precision_param is float32, and a plan keeps it. In bfloat16, activations and gathered"
        " weights take half the memory, and matrix products are at least twice as fast.",
        next="Unless float32 is intended, plan again with --training.mixed_precision_param bfloat16.",
        evidence=[Evidence(text="training.mixed_precision_param = float32")],
        confidence=1.0,
    )


def in_words(planned: PlannedSettings) -> str:
    """Return settings as a phrase such as `data_parallel_shard_degree 8, local_batch_size 4, mode full`."""
    shown = {key.rpartition(".")[2]: value for key, value in planned.settings.items() if _is_switched_on(key, value)}
    return ", ".join(f"{name} {str(value).lower() if value is True else value}" for name, value in shown.items())


def _is_switched_on(key: str, value: object) -> bool:
    return value is not False and not (key.endswith("_degree") and value == 1)
