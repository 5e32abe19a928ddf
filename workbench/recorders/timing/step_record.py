"""Define the fields of a line of the step log, the JSON lines that `StepRecorder` writes."""

from typing import TypedDict


class MemoryUse(TypedDict):
    """The fields about memory: peaks and limit in bytes, and the number of allocation retries.

    On a CPU, the peaks are peaks of the process's resident memory.
    """

    memory_bytes: int
    reserved_bytes: int
    limit_bytes: int | None
    alloc_retries: int


class StepRecord(MemoryUse):
    """A line of rank R's `steps/rank_R.jsonl`; times are in ns.

    `residual_ns` is the time of the step outside all phases.
    """

    step: int
    start_ns: int
    dur_ns: int
    phases: dict[str, int]
    cpu_ns: dict[str, int]
    device_ns: dict[str, int]
    residual_ns: int
    tokens: int
    loss: float | str | None
    local_loss: float | str | None
    grad_norm: float | str | None
    tags: list[str]
    seqs: dict[str, int]
