"""The options of the recorders: what they record, and where they write it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecorderOptions:
    """What the recorders of a training script write, how often, and into which folder.

    The names are those of torchtitan's sections `profiling` and `comm`. All other folders are relative to `folder`.
    `..._freq`, `..._window`, `profiler_active` and `profiler_warmup` are numbers of steps. `trace_buf_size` is the
    number of collectives that Flight Recorder keeps; timeouts are in seconds. `memory_until` is the number of a step
    for a table of the memory: allocations up to this step are recorded even if no snapshot follows. `find_holders`
    looks for what keeps the tensors that each step leaves (see `MemoryRecorder`).
    """

    folder: str = "outputs"
    enable_profiling: bool = False
    save_traces_folder: str = "profile_traces"
    profile_freq: int = 10
    profiler_active: int = 1
    profiler_warmup: int = 3
    enable_memory_snapshot: bool = False
    save_memory_snapshot_folder: str = "memory_snapshot"
    memory_snapshot_freq: int | None = None
    memory_snapshot_window: int = 5
    memory_until: int | None = None
    trace_buf_size: int = 20000
    init_timeout_s: float = 300.0
    train_timeout_s: float = 100.0
    timing_breakdown: bool = False
    find_holders: bool = False
