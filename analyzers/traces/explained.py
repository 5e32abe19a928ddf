"""Say what each finding on profiler traces means; `WORDS` describes those on opportunities."""

from analyzers.explained import Explained, explained
from analyzers.traces.advice import REPORTED_ELSEWHERE
from analyzers.traces.advice_words import WORDS

_OTHERS = explained(
    "trace",
    (
        (
            "host_bound",
            "The device often has nothing to do, because the host has not launched its next kernel",
            "gaps before kernels that were launched only after the device had run out of work",
            "torch.compile, CUDA graphs, larger batches, fewer calls that wait for the device",
            "kernels are missing from the trace (trace.lost_kernels)",
        ),
        (
            "straggler",
            "One rank's own work takes longer than that of the others, which wait for it in collectives",
            "the time outside of collectives of each rank, on a common clock",
            "look at the part that the finding names: data loading, host, kernels",
            "recordings of different moments",
        ),
        (
            "exposed_communication",
            "Communication runs while nothing is computed",
            "the time of collectives beside which no kernel of another kind runs",
            "overlap it (buckets, prefetching), after a straggler is mended",
            "",
        ),
        (
            "devices_in_turn",
            "The devices of one process work one after the other",
            "the busy times of its devices hardly overlap",
            "a pipeline of microbatches, or one process per device",
            "",
        ),
        (
            "memory_grows",
            "Memory grows in each of the profiled steps",
            "allocated bytes at the begin and end of each step, if the trace was recorded with profile_memory=True",
            "record a memory snapshot, which names the line",
            "the first steps, in which the optimizer's state and caches come to be",
        ),
        (
            "memory_unused",
            "Much of what the allocator reserved was never used at once during the recording",
            "reserved bytes against the peak of allocated bytes",
            "empty_cache() once after an early peak; expandable segments against fragmentation",
            "",
        ),
        (
            "memory_near_limit",
            "The device is nearly full at the peak of the recording",
            "the peak against the device's memory",
            "recompute activations, shard more, or use a smaller batch",
            "",
        ),
        (
            "graph_breaks",
            "torch.compile left its compiled code several times in a step",
            "events of the compiled regions and the time between them",
            "TORCH_LOGS=graph_breaks prints each reason; print(), .item() and calls into C extensions are usual ones",
            "",
        ),
        (
            "compiled_meanwhile",
            "torch.compile compiled code during the recording",
            "events of the compiler in the trace",
            "record some steps later; TORCH_LOGS=recompiles says which input changed",
            "",
        ),
        (
            "driver_allocations",
            "The allocator asked the driver for memory, or gave it back, during the recording",
            "calls of cudaMalloc and cudaFree (hipMalloc, hipFree) in the trace",
            "leave memory free and keep shapes alike; do not call empty_cache() in the loop",
            "the start of CUDA, which shows as one long cudaFree",
        ),
        (
            "cpu_only",
            "The trace has no work of a GPU",
            "no kernel, copy or memset is in it",
            "record with ProfilerActivity.CUDA (or XPU) if the job uses GPUs",
            "",
        ),
        (
            "lost_kernels",
            "The trace lacks the kernels of many launches",
            "launches without a kernel of the same correlation",
            "record fewer steps, without shapes and stacks, and with no other profiler on the machine",
            "",
        ),
        (
            "unlinked",
            "The trace does not show which code launched some kernels",
            "kernels and copies without a launch of the same correlation",
            "let the profiler warm up for one step",
            "",
        ),
        (
            "truncated",
            "The trace file is cut off, or has entries that cannot be right",
            "its JSON ends early, or times and durations are impossible",
            "export it again, and let the process end in good order",
            "",
        ),
        (
            "empty",
            "The trace file records no work",
            "it has neither kernels nor operators",
            "export in on_trace_ready, not after the loop",
            "",
        ),
    ),
)
EXPLAINED = _OTHERS + tuple(
    Explained(
        id=f"trace.{kind}",
        what=words.title,
        tested=words.why.rstrip("."),
        next=f"{words.next.rstrip('.')}. {words.check.rstrip('.')}",
    )
    for kind, words in WORDS.items()
    if kind not in REPORTED_ELSEWHERE and f"trace.{kind}" not in {one.id for one in _OTHERS}
)
