"""Check that the advice of `workbench inspect RUN --prove` makes a run fit that ran out of memory.

`python -m benchmarks.advice.proofs`: each case is a job on CPU under a limit on its memory, which it exceeds; the
advice is applied and run, and predicted and measured peaks are printed as one line of JSON a case.
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
MB = 1_000_000
BASE = 700 * MB
"""About how many bytes a rank with torch uses besides its tensors."""
LARGE = ("--model.flavor", "debugmodel_large")
FULL = ("--activation_checkpoint.mode", "full")
EVAL = ("--validation.enable", "--validation.freq", "1", "--validation.steps", "1")
BATCH = "--training.local_batch_size"


class Case(NamedTuple):
    """A job that runs out of memory: the room for its tensors, its ranks, flags of the trainer or a script's, and the
    answer that an expert expects: a part of the changed settings, or why nothing is changed.
    """

    name: str
    room: int
    expected: str
    flags: tuple[str, ...] = ()
    ranks: int = 1
    script: bool = False


CASES = [
    Case("batch too large", 700 * MB, "mode", (*LARGE, BATCH, "32")),
    Case("sequence too long", 500 * MB, "mode", (*LARGE, BATCH, "1", "--training.seq_len", "2048")),
    Case("batch too large with recomputation", 300 * MB, "local_batch_size", (*LARGE, *FULL, BATCH, "64")),
    Case("optimizer in float32", 80 * MB, "dtype", (*LARGE, *FULL, BATCH, "1", "--training.seq_len", "16")),
    Case("two copies of the model", 80 * MB, "shard", (*LARGE, *FULL, BATCH, "1", "--training.seq_len", "16",
         "--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "1"),
         ranks=2),
    Case("leak", 500 * MB, "grew", (BATCH, "64", "--faults.name", "leak", "--faults.step", "2",
         "--training.steps", "30")),
    Case("one batch of 64 times the size", 0, "inputs", ("--faults.name", "oom")),
    Case("batch of the validation", 150 * MB, "validation", (*LARGE, *FULL, BATCH, "1", *EVAL,
         "--validation.local_batch_size", "128")),
    Case("script with --batch-size", 400 * MB, "--batch-size", ("--batch-size", "64"), script=True),
    Case("script without a flag", 400 * MB, "no flag", (), script=True),
]  # fmt: skip
KEPT_BACK = [
    Case("experts", 300 * MB, "mode", ("--model.name", "llama4", BATCH, "64", "--training.seq_len", "256")),
    Case("two ranks in bfloat16", 350 * MB, "mode", (*LARGE, BATCH, "32",
         "--training.mixed_precision_param", "bfloat16"), ranks=2),
    Case("script with --per_device_train_batch_size", 400 * MB, "per_device", ("--per_device_train_batch_size=96",),
         script=True),
    Case("accumulation", 500 * MB, "mode", (*LARGE, BATCH, "24", "--training.global_batch_size", "96")),
]  # fmt: skip
SCRIPT = """
import sys
import torch
from torch import nn
from workbench.recorders.memory.recorder import MemoryRecorder

folder, words = sys.argv[1], [part for word in sys.argv[2:] for part in word.split("=")]
batch = int(words[1]) if len(words) > 1 else 64
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
recorder = MemoryRecorder(folder + "/memory_snapshot", model, optimizer, freq=3)
try:
    for step in range(1, 4):
        with recorder.recording(step):
            with recorder.phase("fwd"):
                loss = model(torch.randn(batch * 32, 512)).square().mean()
            with recorder.phase("bwd"):
                loss.backward()
            with recorder.phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
except RuntimeError as error:
    recorder.failed(error)
    raise
"""


def limited(limit: int | None) -> None:
    """Limit the data segment of this process, and of those that it starts, to `limit` bytes; None means no limit."""
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def arguments(case: Case, folder: Path) -> list[str]:
    """Return the options of `workbench launch` that start the job of a case."""
    run = folder / "run"
    if case.script:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        return ["--job.dump_folder", str(run), "--", sys.executable, str(script), str(run), *case.flags]
    recorded = ("--profiling.enable_memory_snapshot", "--job.dump_folder", str(run), "--nproc", str(case.ranks))
    return ["--config", str(ROOT / "configs/fsdp.toml"), *recorded, *case.flags]


def workbench(*words: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the workbench under a limit on memory."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "workbench", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
        preexec_fn=lambda: limited(limit),  # this process has no other threads
    )  # fmt: skip


def answered(case: Case, folder: Path) -> dict[str, Any]:
    """Run the job of a case out of memory, prove the advice, and return the answer beside what is expected."""
    failed = workbench("launch", "--no-watch", *arguments(case, folder), limit=BASE + case.room if case.room else None)
    row: dict[str, Any] = {"case": case.name, "failed": failed.returncode}
    proof = workbench("inspect", str(folder / "run"), "--prove", "--json", "--no-cache")
    if proof.returncode:
        return row | {"error": proof.stderr[-600:], "log": failed.stdout[-800:] + failed.stderr[-300:]}
    report = json.loads(proof.stdout)
    data, rerun = report["data"], report["data"]["rerun"]
    applied = [one for one in data["considered"] if one["fits"]][-1] if rerun else None
    said = f"{applied['changes']}" if applied else data["not_applied"]
    return row | {
        "answer": report["verdict"]["class"], "said": said, "right": case.expected in said, "room": data["room_bytes"],
        "needed": data["needed_bytes"], "predicted": applied and applied["predicted_bytes"],
        "measured": rerun and rerun["peak_bytes"], "steps": rerun and rerun["steps"],
        "reruns": data["reruns"],
    }  # fmt: skip


def main() -> None:
    """Print one line a case; arguments select cases by number, `--kept-back` those that were kept back."""
    words = sys.argv[1:]
    cases = KEPT_BACK if "--kept-back" in words else CASES
    for number in [int(word) for word in words if word.isdecimal()] or range(len(cases)):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(answered(cases[number], Path(folder))), flush=True)


if __name__ == "__main__":
    main()
