"""The numbers of one account: where its span goes, in all and by phase, stream and step."""

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.all_to_all import exchanges
from analyzers.traces.answers.collectives import RankCollectives, collectives
from analyzers.traces.answers.compiled import compiled
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.flops import Formulas
from analyzers.traces.answers.idle import blocking, idle
from analyzers.traces.answers.input_shapes import by_shape
from analyzers.traces.answers.kernels import kernels, sequences
from analyzers.traces.answers.launches import copies, copy_sizes, graphs, launch_times, queues, synchronisations
from analyzers.traces.columns.intervals import break_down, union_length
from analyzers.traces.columns.phases import OTHER, PHASE_NAMES
from analyzers.traces.columns.work import Work
from analyzers.traces.reading.distinct import distinct_values, rows_by_value
from analyzers.traces.structs import Breakdown, DeviceCounter, RankTrace, StepTime

KERNELS_AT_MOST = 100
DIVIDED = [name for name in Breakdown.__struct_fields__ if name in RankTrace.__struct_fields__]
"""How an account divides, as a part of it does."""


def describe(met: RankCollectives, formulas: Formulas) -> RankTrace:
    """All answers about one account; path, rank, utilisation and problems are the caller's to fill in."""
    work, trace, due = met.work, met.work.trace, Attribution(met.work)
    whole, gaps = part(work, "", np.arange(len(work.rows))), idle(work)
    # Of several devices each has done what it was launched for; of one also what was launched unseen.
    done, again = formulas.total(due.inside[1] > 0 if len(distinct_values(trace.devices)) > 1 else None)
    timed = sum(end - start for _, start, end in trace.steps) or whole.span_ns
    devices = trace.header.get("devices", [])
    return RankTrace(
        path="",
        rank=trace.header.get("rank"),
        device=work.device,
        world_size=trace.header.get("world_size"),
        backend=trace.header.get("backend"),
        source="cpu" if work.device is None else "device",
        device_name=devices[0] if devices and work.device is not None else "",
        steps=len(trace.steps),
        device_events=len(work.rows),
        unlinked_events=int((~work.linked).sum()),
        **{name: getattr(whole, name) for name in DIVIDED},
        idle_host_ns=gaps.host,
        idle_dependency_ns=gaps.dependency,
        idle_launch_ns=gaps.launch,
        idle_unexplained_ns=gaps.unexplained,
        blocking_communication_ns=union_length(*blocking(work)),
        kernels=kernels(due)[:KERNELS_AT_MOST],
        step_times=step_times(work),
        phases=phase_parts(work),
        streams=stream_parts(work),
        operators=due.operators(formulas),
        modules=due.modules(),
        annotations=due.annotations(),
        lines=due.lines(),
        shapes=by_shape(due, formulas),
        launched=due.launched(),
        launches=launch_times(work),
        queues=queues(work),
        synchronisations=synchronisations(trace),
        copies=copies(work),
        copy_sizes=copy_sizes(work),
        collectives=collectives(met),
        exchanges=exchanges(met),
        graphs=graphs(work),
        compiled=compiled(trace),
        sequences=sequences(work),
        counters=msgspec.convert(trace.columns.meta["counters"], list[DeviceCounter]),
        flops=done,
        recomputed_flops=again,
        flops_per_s=round(done / timed * 1e9) if timed else 0,
        peak_flops_per_s=formulas.peaks[0] if formulas.peaks else None,
        problems=[],
    )


def part(work: Work, name: str, rows: Column) -> Breakdown:
    """How some events divide, whose places in `work` are given."""
    start, end = work.start[rows], work.end[rows]
    found = break_down(start, end, work.kind[rows])
    return Breakdown(
        name=name,
        events=len(rows),
        work_ns=int((end - start).sum()),
        span_ns=found.span,
        busy_ns=found.busy,
        idle_ns=found.idle,
        compute_ns=found.compute,
        communication_ns=found.communication,
        exposed_communication_ns=found.exposed_communication,
        overlapped_communication_ns=found.overlapped,
        memory_ns=found.memory,
        exposed_memory_ns=found.exposed_memory,
    )


def phase_parts(work: Work) -> list[Breakdown]:
    """By the phase that launched each event; `no launch` where the file does not tell."""
    phase = work.phase
    found = [part(work, PHASE_NAMES[i] if i >= 0 else "no launch", rows) for i, rows in rows_by_value(phase)]
    return [] if [one.name for one in found] == [OTHER] else sorted(found, key=lambda one: -one.busy_ns)


def stream_parts(work: Work) -> list[Breakdown]:
    """By stream; on a host by thread."""
    lane = work.trace.columns["lane"][work.rows]
    return [part(work, work.trace.columns.meta["lanes"][i]["name"], rows) for i, rows in rows_by_value(lane)]


def step_times(work: Work) -> list[StepTime]:
    """The steps of the host with the work that each launched."""
    rows, base = dict(rows_by_value(work.step())), int(work.trace.header.get("base_ns", 0))
    found = []
    for place, (number, start, end) in enumerate(work.trace.steps):
        one = part(work, f"step {number}", rows.get(place, np.zeros(0, np.int64)))
        fields = {name: getattr(one, name) for name in Breakdown.__struct_fields__}
        found.append(StepTime(step=number, start_ns=start + base, dur_ns=end - start, **fields))
    return found
