"""Make a finding about one device or host, and write the texts that several kinds of such findings share."""

import re
from collections.abc import Sequence

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.launches import loses_kernels
from analyzers.traces.model import RankTrace
from analyzers.traces.reading.trace import Problem, ProblemKind
from analyzers.words import duration_ns, quantity, rank_ranges

GPU_TRAINING = re.compile(r"nccl|hccl|mtia|xccl")
"""Matches the backends of process groups that exchange only data of devices."""


def account_finding(
    account: RankTrace,
    finding_id: str,
    title: str,
    why: str,
    next_step: str,
    *,
    severity: Severity,
    confidence: float,
    facts: Sequence[str] = (),
    with_times: bool = True,
) -> Finding:
    """Return a finding about one device or host.

    The first evidence is the rank, device, steps and times. It is left out with `with_times=False`, for findings that
    are not about time.
    """
    about_time = [times_fact(account)] if with_times else []
    return Finding(
        id=finding_id,
        severity=severity,
        title=title,
        why=why,
        next=next_step,
        ranks=[] if account.rank is None else [account.rank],
        evidence=[*about_time, *(Evidence(text=text, source=account.path) for text in facts)],
        confidence=confidence,
    )


def times_fact(account: RankTrace, more: str = "") -> Evidence:
    """Return the fact on how long a device or host was recorded, at work and idle, with `more` after it."""
    where = "CPU" if account.device is None else f"device {account.device}"
    steps = rank_ranges(step.step for step in account.step_times)
    where += f", {'step' if len(account.step_times) == 1 else 'steps'} {steps}" if steps else ""
    idle = duration_ns(account.idle_ns)
    if account.source == "cpu":
        kinds = f"{duration_ns(account.busy_ns)} in operators or collectives, {idle} in neither"
        text = f"{duration_ns(account.span_ns)} recorded; {kinds}"
    else:
        recorded = f"{duration_ns(account.span_ns)} from the first to the last kernel"
        text = f"{recorded}; {duration_ns(account.busy_ns)} at work, {idle} idle"
    return Evidence(text=text + more, rank=account.rank, where=where, source=account.path)


def lacks_kernels(account: RankTrace) -> bool:
    return account.launches is not None and loses_kernels(account.launches.expected, account.launches.lost)


def is_amd(account: RankTrace) -> bool:
    return bool(re.search("AMD|Radeon|Instinct", account.device_name)) or any(
        call.name.startswith("hip") for call in account.synchronisations
    )


def has_graphs(account: RankTrace) -> bool:
    """Return whether the device has CUDA graphs (or HIP's): accelerators of other makers than NVIDIA and AMD do not.

    These are recognised by the device's name, or else by the backend of the process group.
    """
    other = re.search("Intel|Gaudi|Ascend", account.device_name) or re.search("mtia|xccl|hccl", account.backend or "")
    return not other


def less_fragmentation(account: RankTrace) -> str:
    """Return the sentence that advises the allocator setting against fragmentation for the device of a trace.

    For AMD devices PyTorch has expandable segments since 2.12 (pull request 177974), and only with ROCm 7; older
    versions print a warning and ignore the setting. `garbage_collection_threshold` is not advised: without a memory
    fraction (`torch.cuda.set_per_process_memory_fraction`) it has no effect (pull request 76648).
    """
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if not is_amd(account):
        return f"Against fragmentation set {setting}."
    return (
        "Against fragmentation set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512."
        f" With PyTorch 2.12 and ROCm 7 or later, {setting} works on AMD GPUs too; older versions ignore it."
    )


def recorded_time(account: RankTrace) -> str:
    return "recorded time" if account.rank is None else f"recorded time of rank {account.rank}"


_SENTENCES = {
    ProblemKind.CUT_OFF: "The file is cut off; what was there has been read.",
    ProblemKind.REPLACED_TEXT: "Control characters, invalid text or non-finite numbers were replaced.",
    ProblemKind.UNKNOWN_EVENTS: "Left out {events} of unknown structure.",
    ProblemKind.ODD_ARGUMENTS: "Left out the arguments of {events}: they have unexpected types.",
    ProblemKind.IMPOSSIBLE_TIMES: "Left out {events} with impossible times.",
    ProblemKind.NO_DEVICE_EVENTS: "No device events were recorded: operators and host collectives are counted instead.",
    ProblemKind.NO_LAUNCH: "{count} of {total} device events have no launch in the file.",
    ProblemKind.LOST_KERNELS: "The kernels of {count} of {total} launches are missing.",
    ProblemKind.EARLY_KERNELS: "{kernels} started before the launch, by up to {most}: the clocks of host and device"
    " disagree.",
    ProblemKind.OVERLAPPING_EVENTS: "Of the device events, {count} overlap a different event of the same stream.",
    ProblemKind.SHARED_CORRELATION: "Of the device events, {count} share their correlation id with a different event,"
    " as the"
    " kernels of a CUDA graph do.",
    ProblemKind.OUTSIDE_STEPS: "{count} of {total} events belong to no step.",
    ProblemKind.CUT_STEPS: "{names} was cut off by the end of the recording.",
    ProblemKind.NO_STEPS: "There is no ProfilerStep: the whole recording counts as one step.",
    ProblemKind.OVERLAPPING_STEPS: "Steps overlap.",
    ProblemKind.FORWARD_ONLY_STEPS: "{count} of {total} steps have no backward pass, as in evaluation: they count as"
    " steps all the same.",
}


def problem_sentence(problem: Problem) -> str:
    return _SENTENCES[problem.kind].format(
        count=problem.count,
        events=quantity(problem.count, "event"),
        kernels=quantity(problem.count, "kernel"),
        total=problem.total,
        most=duration_ns(problem.most_ns),
        names=", ".join(problem.names),
    )
