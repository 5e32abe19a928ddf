"""The options of the recorders, which say what they record and where they write it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecorderOptions:
    """Options of all recorders, named as in torchtitan's profiling and comm sections.

    Frequencies and windows are numbers of steps, `trace_buf_size` is a number of collectives, timeouts are in
    seconds; folders are relative to `folder`. `memory_until` is the step after which a table of the memory is
    printed, or None.
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
