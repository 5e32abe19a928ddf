"""Write the step logs of a long run, in which one rank waits 40 ms longer for its data from a step on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

MS = 1_000_000
USUAL_MS = {
    "gc": 0, "data_wait": 3, "h2d": 0.2, "fwd": 120, "bwd": 240, "grad_clip": 9, "optim": 15, "loss_sync": 8,
    "log": 0.3, "ckpt_save": 0.02,
}  # fmt: skip
NAMES = [*USUAL_MS]
PHASES = ",".join(f'"{name}":%d' for name in NAMES)
LINE = (
    '{"step":%d,"start_ns":%d,"dur_ns":%d,"phases":{%s},"cpu_ns":{%s},"device_ns":{},"residual_ns":1000000,'
    '"tokens":8192,"loss":%r,"local_loss":%r,"grad_norm":1.0,"memory_bytes":17179869184,"reserved_bytes":17179869184,'
    '"alloc_retries":0,"tags":[%s],"seqs":{"0":%d}}'
)
TAGS = ("", '"first","gc"')
LATE_MS = 40


def write_logs(folder: Path, ranks: int, steps: int, late_rank: int, late_from: int) -> None:
    """Write the step logs of all ranks to the folder `steps` in `folder`; one rank is late from a step on."""
    for rank in range(ranks):
        lines = log_lines(rank, ranks, steps, LATE_MS * (rank == late_rank), LATE_MS * (rank != late_rank), late_from)
        (folder / "steps" / f"rank_{rank}.jsonl").write_text("\n".join(lines) + "\n")


def log_lines(rank: int, ranks: int, steps: int, late_ms: int, waiting_ms: int, late_from: int) -> Iterator[str]:
    """Yield the lines of a log: from a step on, the rank takes longer for its data, or for its backward pass, in which
    it waits for the others.
    """
    noise = np.random.default_rng(rank).random((steps, len(USUAL_MS))) / 50
    phases = (np.array([*USUAL_MS.values()]) * MS * (1 + noise)).astype(int)
    phases[late_from - 1 :, NAMES.index("data_wait")] += late_ms * MS
    phases[late_from - 1 :, NAMES.index("bwd")] += waiting_ms * MS
    durations = phases.sum(axis=1) + MS
    starts = 1_800_000_000_000 * MS + np.cumsum(durations) - durations
    yield f'{{"schema":"workbench.steps/1","rank":{rank},"world_size":{ranks},"device":"cuda","host":"h{rank // 8}"}}'
    for step, (start, whole, row) in enumerate(
        zip(starts.tolist(), durations.tolist(), phases.tolist(), strict=True), 1
    ):
        parts = PHASES % tuple(row)
        yield LINE % (step, start, whole, parts, parts, 11 - step**0.3, 11 - step**0.3, TAGS[step == 1], 20 * step)
