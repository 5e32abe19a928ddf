"""The numbers of one account: where its span goes, by kernel and by step."""

import numpy as np

from analyzers.traces.intervals import KIND_NAMES, account
from analyzers.traces.model import Kernel, RankTrace, StepTime, Trace
from analyzers.traces.work import Work, idle_parts, works

KERNELS_AT_MOST = 100


def accounts(trace: Trace) -> list[RankTrace]:
    """One account for each device of a trace, or for its host."""
    return [describe(work) for work in works(trace)]


def describe(work: Work) -> RankTrace:
    """All answers about one account."""
    trace = work.trace
    whole = account(work.start, work.end, work.kind)
    host, queue = idle_parts(work)
    return RankTrace(
        path=str(trace.artefact.path),
        rank=trace.rank,
        device=work.device,
        world_size=trace.world_size,
        backend=trace.backend,
        source="cpu" if work.device is None else "device",
        steps=len(trace.steps),
        device_events=len(work.rows),
        unlinked_events=int((~work.linked).sum()),
        span_ns=whole.span,
        busy_ns=whole.busy,
        idle_ns=whole.idle,
        idle_host_ns=host,
        idle_queue_ns=queue,
        compute_ns=whole.compute,
        communication_ns=whole.communication,
        exposed_communication_ns=whole.exposed_communication,
        overlapped_communication_ns=whole.overlapped,
        memory_ns=whole.memory,
        exposed_memory_ns=whole.exposed_memory,
        kernels=kernels(work)[:KERNELS_AT_MOST],
        step_times=step_times(work),
        problems=problems(work),
    )


def kernels(work: Work) -> list[Kernel]:
    """Every kernel name with its statistics, the longest in total first; operators count their own time."""
    if not len(work.rows):
        return []
    name, spent = work.trace.columns["name"][work.rows], work.own
    order = np.lexsort((spent, name))
    _, first, count = np.unique(name[order], return_index=True, return_counts=True)
    total = np.add.reduceat(spent[order], first)
    found = [
        Kernel(
            name=work.trace.names[name[order[at]]],
            kind=KIND_NAMES[work.kind[order[at]]],
            count=int(times),
            total_ns=int(in_all),
            mean_ns=round(int(in_all) / int(times)),
            min_ns=int(spent[order[at]]),
            max_ns=int(spent[order[at + times - 1]]),
        )
        for at, times, in_all in zip(first, count, total, strict=True)
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ns, kernel.name))


def step_times(work: Work) -> list[StepTime]:
    """The steps of the host with the work that each launched."""
    step = work.step()
    return [step_time(work, step == place, mark) for place, mark in enumerate(work.trace.steps)]


def step_time(work: Work, rows: "np.ndarray[tuple[int], np.dtype[np.bool_]]", mark: tuple[int, int, int]) -> StepTime:
    number, start, end = mark
    part = account(work.start[rows], work.end[rows], work.kind[rows])
    return StepTime(
        step=number,
        start_ns=start + int(work.trace.columns.meta["header"].get("base_ns", 0)),
        dur_ns=end - start,
        events=int(rows.sum()),
        span_ns=part.span,
        busy_ns=part.busy,
        compute_ns=part.compute,
        communication_ns=part.communication,
        exposed_communication_ns=part.exposed_communication,
    )


def problems(work: Work) -> list[str]:
    """What is odd about the file, a line each."""
    trace, told = work.trace, list(work.trace.columns.meta["problems"])
    early = int((work.linked & (work.start < work.launch_start)).sum())
    unlinked = int((~work.linked).sum())
    cut = {name for row in trace.columns["unfinished_row"] if (name := trace.names[trace.columns["name"][row]])}
    cut_steps = sorted(name for name in cut if name.startswith("ProfilerStep"))
    outside = int((work.step() < 0).sum()) if trace.steps else 0
    lines = {
        "no device events: operators and host collectives are accounted for instead": work.device is None,
        f"{unlinked} of {len(work.rows)} device events have no launch in the file": unlinked,
        f"{early} kernels start before their launch: the clocks of host and device disagree": early,
        f"{outside} of {len(work.rows)} events belong to no step": outside,
        f"{', '.join(cut_steps)} was cut by the end of the recording": cut_steps,
        "no ProfilerStep: the whole recording counts as one step": not trace.steps,
    }
    return told + [line for line, holds in lines.items() if holds]
