"""Check that the plans of `workbench plan` run within the memory limit, and that the next larger batch does not.

`python -m benchmarks.advice.plans [--usual | --limits] [NUMBER ...]`: each case is planned without a margin; the plans
and the batch after the first are trained for 14 steps, whose median gives the speed. With `--usual` a case is planned
with the margin that the command has by default, and of its plans only the first is trained.

With `--limits` the limits are real: the first plan with the usual margin and the next larger batch are trained on gloo
ranks, each of which can have no more tensors than the limit from its second step on
(`benchmarks.advice.limited_trainer`).
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from analyzers.memory import analyze
from analyzers.run import Kind, discover
from analyzers.steps import analyze as analyze_steps
from benchmarks.start_job import start_job
from workbench.commands.plan import plan
from workbench.documents import PlannedSettings
from workbench.launch.plan import Request

ROOT = Path(__file__).parents[2]
LARGE = ("--model.flavor", "debugmodel_large")
MB = 1_000_000
STEPS = "14"
"""Steps of a run; only the last two are recorded, as a recorded step takes several times as long."""
MARGIN, LIMITED_STEPS = 0.1, "4"
REFUSED = re.compile("can(?:no|')t allocate memory|bad_alloc|MemoryError|failed to map segment", re.IGNORECASE)
"""Matches what PyTorch's allocator, C++, Python or the dynamic loader says of a request that the limit refuses."""


class Case(NamedTuple):
    """A job to plan: its file in `configs`, ranks, the memory of each, and flags that are kept."""

    config: str
    ranks: int
    limit: int
    flags: tuple[str, ...] = ()


CASES = [
    Case("fsdp", 2, 20 * MB),
    Case("fsdp", 2, 40 * MB),
    Case("fsdp", 4, 12 * MB),
    Case("fsdp", 2, 150 * MB, LARGE),
    Case("fsdp", 2, 90 * MB, LARGE),
    Case("fsdp", 4, 100 * MB, LARGE),
    Case("fsdp", 2, 30 * MB, ("--training.mixed_precision_param", "bfloat16")),
    Case("fsdp", 2, 30 * MB, ("--training.seq_len", "512")),
    Case("fsdp", 2, 60 * MB, ("--activation_checkpoint.mode", "full")),
    Case("fsdp", 4, 60 * MB, (*LARGE, "--parallelism.tensor_parallel_degree", "2")),
]


def flags_of(planned: PlannedSettings) -> Iterator[str]:
    """Yield the trainer's command-line flags for the settings of a plan."""
    for key, value in planned.settings.items():
        if value is True:
            yield f"--{key}"
        elif value is not False:
            yield from (f"--{key}", str(value))


def measured(case: Case, planned: PlannedSettings) -> tuple[int, float]:
    """Return the highest peak of any rank, and tokens a second, of a real run of planned settings on CPU."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--profiling.enable_memory_snapshot", "--profiling.profile_freq", STEPS, "--training.steps", STEPS,
            "--profiling.memory_snapshot_window", "2", "--job.dump_folder", folder, *case.flags, *flags_of(planned),
        ]  # fmt: skip
        start_job("trainer", "--config", str(ROOT / f"configs/{case.config}.toml"), *flags, ranks=case.ranks)
        report = analyze(discover(Path(folder)).of(Kind.SNAPSHOT))
        steps = analyze_steps(folder).data.ranks
        step = max(rank.median_step_s or 0.0 for rank in steps)
    return max(device.peak_allocated_bytes for device in report.data.devices), planned.tokens_per_step / step


def checked(case: Case, margin: float = 0.0, count: int = 3) -> dict[str, Any]:
    """Plan a case and run `count` of its plans; return the planned and the measured numbers as a dict."""
    began = time.monotonic()
    request = Request(config=str(ROOT / f"configs/{case.config}.toml"), nproc=case.ranks, overrides=case.flags)
    data = plan(request, case.limit, margin, "cpu", count).data
    row: dict[str, Any] = {"case": case._asdict(), "seconds": time.monotonic() - began, "plans": [], "larger": None}
    for planned in data.plans:
        peak, speed = measured(case, planned)
        row["plans"].append(summary(planned, peak, speed))
    if data.next_larger:
        row["larger"] = summary(data.next_larger, *measured(case, data.next_larger))
    return row


def shown(planned: PlannedSettings) -> dict[str, Any]:
    """Return the settings that are not off, without the names of their sections."""
    return {key.rpartition(".")[2]: value for key, value in planned.settings.items() if value not in (1, False)}


def summary(planned: PlannedSettings, peak: int, speed: float) -> dict[str, Any]:
    """Return the planned and the measured memory and speed of one choice of settings."""
    return {
        "settings": shown(planned), "planned": planned.peak_bytes, "measured": peak,
        "planned_speed": planned.tokens_per_s, "measured_speed": speed,
    }  # fmt: skip


def runs(case: Case, planned: PlannedSettings) -> bool:
    """Return whether the job trains its steps under the limit; False if a request for memory was refused.

    Raises:
        RuntimeError: The job failed for another reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--config", str(ROOT / f"configs/{case.config}.toml"), "--training.steps", LIMITED_STEPS,
                 "--job.dump_folder", folder, *case.flags, *flags_of(planned)]  # fmt: skip
        module = "benchmarks.advice.limited_trainer"
        try:
            start_job(module, str(case.limit), *flags, ranks=case.ranks, MALLOC_MMAP_THRESHOLD_="16384")
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode()
            if not REFUSED.search(said):
                raise RuntimeError(said[-2000:]) from error
            return False
    return True


def row(case: Case) -> str:
    """Return a row of the table: the job, its first plan and whether it runs, the next larger batch and whether it."""
    request = Request(config=str(ROOT / f"configs/{case.config}.toml"), nproc=case.ranks, overrides=case.flags)
    data = plan(request, case.limit, MARGIN, "cpu", 1).data
    job = f"{case.ranks} ranks of {case.limit:,} {' '.join(case.flags)}".strip()
    return f"| {job} | {outcome(case, data.plans[0] if data.plans else None)} | {outcome(case, data.next_larger)} |"


def outcome(case: Case, planned: PlannedSettings | None) -> str:
    """Return what was planned, its peak, and whether it ran under the limit; `not named` if there is no such plan."""
    if planned is None:
        return "not named"
    return f"{shown(planned)}, planned {planned.peak_bytes:,}: {'runs' if runs(case, planned) else 'out of memory'}"


def main() -> None:
    """Print one line of JSON for each case, or one row of a table with `--limits`; arguments select cases by number."""
    chosen = [int(word) for word in sys.argv[1:] if word.isdecimal()] or range(len(CASES))
    usual = (MARGIN, 1) if "--usual" in sys.argv else (0.0, 3)
    for number in chosen:
        case = CASES[number]
        print(row(case) if "--limits" in sys.argv else msgspec.json.encode(checked(case, *usual)).decode(), flush=True)


if __name__ == "__main__":
    main()
