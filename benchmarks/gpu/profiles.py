"""Record profiler traces with and without memory events; check that they can be read and their times add up."""

import gzip
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

from benchmarks.gpu.case import Case, Measured, Place, check
from benchmarks.gpu.memory import small_model

STEPS = 4
WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "memory": {"profile_memory": True},
    "memory_stacks_shapes": {"profile_memory": True, "with_stack": True, "record_shapes": True},
}


def cases() -> Iterator[Case]:
    """Yield a case for each set of profiler options."""
    for name, options in WAYS.items():
        yield Case("traces", name, partial(read_trace, options=options))


def read_trace(place: Place, options: dict[str, bool]) -> Measured:
    """Record some steps, read the trace, and return the parts of its time."""
    from torch.profiler import ProfilerActivity, profile, schedule

    from analyzers.run import Kind, discover
    from analyzers.traces import analyze

    path = place.folder / "rank0_trace.json"
    _, _, train = small_model(place.device)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.on_cuda else [])]
    plan = schedule(wait=0, warmup=2, active=STEPS)
    with profile(
        activities=kinds, schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(path)), **options
    ) as profiler:
        for _ in range(STEPS + 2):
            train(lambda _: nullcontext())
            profiler.step()
    started = time.process_time()
    report = analyze(discover(path).of(Kind.TRACE))
    seconds = time.process_time() - started
    packed = place.folder / "rank0_trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    place.keep(packed)
    account = report.data.ranks[0]
    measured: Measured = {
        "bytes": path.stat().st_size,
        "read_cpu_s": round(seconds, 3),
        "device": account.device,
        "device_name": account.device_name,
        "source": account.source,
        "steps": account.steps,
        "device_events": account.device_events,
        "unlinked_events": account.unlinked_events,
        "busy_ns": account.busy_ns,
        "idle_ns": account.idle_ns,
        "span_ns": account.span_ns,
        "device_memory": len(account.device_memory),
        "sentence": report.verdict.sentence,
    }
    check(account.busy_ns + account.idle_ns == account.span_ns, "busy and idle time do not add up", measured)
    check(account.steps == STEPS, f"{account.steps} of {STEPS} steps were recognised", measured)
    if place.on_cuda:
        check(account.device_events, "no work of the device is in the trace", measured)
        check(not account.unlinked_events, "kernels without the call that launched them", measured)
    return measured
