"""What the facade records, and where."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecorderOptions:
    """Options of all recorders together. Names are those of torchtitan's profiling and comm sections."""

    folder: str = "outputs"
    enable_profiling: bool = False
    save_traces_folder: str = "profile_traces"
    profile_freq: int = 10
    profiler_active: int = 1
    profiler_warmup: int = 3
    enable_memory_snapshot: bool = False
    save_memory_snapshot_folder: str = "memory_snapshot"
    trace_buf_size: int = 20000
    init_timeout_s: float = 300.0
    train_timeout_s: float = 100.0
    timing_breakdown: bool = False
