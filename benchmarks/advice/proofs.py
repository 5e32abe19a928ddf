"""Check that the advice of `workbench inspect RUN --prove` makes a run fit that ran out of memory.

`python -m benchmarks.advice.proofs`: each case is a job on CPU under a limit on its memory, which it exceeds; the
advice is applied and run, and predicted and measured peaks are printed as one line of JSON a case. The limit of a case
lies in the middle between what a process of it was measured to use, without a limit, with settings that an expert
would take and with its own: so the case fails, and can be helped.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
MB = 1_000_000
WIDE = 1 << 36
"""A memory limit that nothing reaches: recorders record under it as they do under one that is reached."""
FREED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment in which freed tensors leave the data of a process; else glibc keeps those of up to 32 MiB for reuse."""
POLL_S = 0.01
DATA_FIELD, PAGE = 5, resource.getpagesize()
"""The field of /proc/PID/statm with the pages of data and stack, which RLIMIT_DATA limits."""
SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 320,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
"""A model of 34 million parameters, so that its state is most of the memory of a small batch."""
STATE = ("--model.flavor", "hf_assets", "--model.hf_assets_path", "SHAPE")
LARGE = ("--model.flavor", "debugmodel_large")
FULL = ("--activation_checkpoint.mode", "full")
HALF = ("--training.dtype", "bfloat16", "--training.mixed_precision_param", "bfloat16")
SHORT = ("--training.seq_len", "16")
EVAL = ("--validation.enable", "--validation.freq", "1", "--validation.steps", "1", "--validation.local_batch_size")
BATCH, COPIES = "--training.local_batch_size", "--parallelism.data_parallel_replicate_degree"
SHARDS = "--parallelism.data_parallel_shard_degree"


class Case(NamedTuple):
    """A job that runs out of memory: its name and flags, and the answer that an expert expects, which is a part of the
    changed settings, or why nothing is changed. With the `healthy` flags added to its own it needs less memory. `ranks`
    is the number of its ranks, and `script` tells whether the flags are those of the script.

    No healthy flags mean that the job limits its memory itself.
    """

    name: str
    expected: str
    flags: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    ranks: int = 1
    script: bool = False


CASES = [
    Case("batch too large", "mode", (BATCH, "96"), FULL),
    Case("sequence too long", "mode", (*LARGE, BATCH, "1", "--training.seq_len", "2048"), FULL),
    Case("batch too large with recomputation", "local_batch_size", (*FULL, BATCH, "256"), (BATCH, "128")),
    Case("optimizer in float32", "dtype", (*STATE, *FULL, *SHORT, BATCH, "1"), HALF),
    Case("two copies of the model", "shard", (*STATE, *FULL, *SHORT, BATCH, "1", COPIES, "2", SHARDS, "1"),
         (COPIES, "1", SHARDS, "2"), ranks=2),
    Case("leak", "grew", (BATCH, "64", "--faults.name", "leak", "--faults.step", "2", "--training.steps", "20"),
         ("--faults.name", "healthy")),
    Case("one batch of 64 times the size", "inputs", ("--faults.name", "oom", "--faults.step", "2")),
    Case("batch of the validation", "validation", (*FULL, BATCH, "4", *EVAL, "512"), (*EVAL[-1:], "128")),
    Case("script with --batch-size", "--batch-size", ("--batch-size", "64"), ("--batch-size", "32"), script=True),
    Case("script without a flag", "no flag", (), ("--batch-size", "32"), script=True),
]  # fmt: skip
KEPT_BACK = [
    Case("experts", "mode", ("--model.name", "llama4", BATCH, "64", "--training.seq_len", "256"), FULL),
    Case("two ranks in bfloat16", "mode", (BATCH, "128", "--training.mixed_precision_param", "bfloat16"), FULL,
         ranks=2),
    Case("script with --per_device_train_batch_size", "per_device", ("--per_device_train_batch_size=96",),
         ("--per_device_train_batch_size=48",), script=True),
    Case("accumulation", "mode", (BATCH, "96", "--training.global_batch_size", "384"), FULL),
]  # fmt: skip
SCRIPT = """
import sys
import torch
from torch import nn
from workbench.recorders.memory.recorder import MemoryRecorder

folder, words = sys.argv[1], [part for word in sys.argv[2:] for part in word.split("=")]
batch = int(words[-1]) if words else 64
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
recorder = MemoryRecorder(folder + "/memory_snapshot", model, optimizer, freq=3)
try:
    for step in range(1, 4):
        with recorder.step(step):
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


def arguments(case: Case, folder: Path, flags: tuple[str, ...]) -> list[str]:
    """Return the options of `workbench launch` that start the job of a case with these flags, in `folder`."""
    if case.script:
        script = folder.parent / "train.py"
        script.write_text(SCRIPT)
        return ["--job.dump_folder", str(folder), "--", sys.executable, str(script), str(folder), *flags]
    shape = folder.parent / "shape"
    shape.mkdir(exist_ok=True)
    (shape / "config.json").write_text(json.dumps(SHAPE))
    recorded = ("--job.dump_folder", str(folder), "--nproc", str(case.ranks), "--profiling.enable_memory_snapshot")
    given = (str(shape) if word == "SHAPE" else word for word in flags)
    return ["--config", str(ROOT / "configs/fsdp.toml"), *recorded, "--training.steps", "2", *given]


def started(*words: str, limit: int | None = None) -> subprocess.Popen[str]:
    """Start a command of the workbench under a limit on memory."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "workbench", *words],
        cwd=ROOT, env=os.environ | FREED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: limited(limit),  # noqa: PLW1509  # this process has no other threads
    )  # fmt: skip


def most_data_bytes(case: Case, folder: Path, flags: tuple[str, ...]) -> int:
    """Run the job of a case with these flags and return the most bytes of data that one of its processes had.

    Raises:
        RuntimeError: The job failed.
    """
    with started("launch", "--no-watch", *arguments(case, folder, flags), limit=WIDE) as job:
        most = 0
        while job.poll() is None:
            most = max([most, *map(data_bytes, descendants(job.pid))])
            time.sleep(POLL_S)
        output = "".join(job.communicate())
    if job.returncode:
        raise RuntimeError(f"{case.name} with {flags} failed without a limit: {output[-600:]}")
    return most


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of the processes that a process has started, and those that they have started."""
    try:
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir()
                    for word in (task / "children").read_text().split()]  # fmt: skip
    except OSError:
        return
    for child in children:
        yield child
        yield from descendants(child)


def data_bytes(pid: int) -> int:
    """Return the bytes of data and stack of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[DATA_FIELD]) * PAGE
    except (OSError, IndexError):
        return 0


def limit_of(case: Case, folder: Path) -> int | None:
    """Return the limit of a case in bytes, or None if the job sets one itself.

    Raises:
        RuntimeError: The case does not need much more than with healthy settings.
    """
    if not case.healthy:
        return None
    healthy = most_data_bytes(case, folder / "healthy", (*case.flags, *case.healthy))
    own = most_data_bytes(case, folder / "own", case.flags)
    if own < healthy + 100 * MB:
        raise RuntimeError(
            f"{case.name} needs {own:,} bytes and {healthy:,} with healthy settings: no limit tells them"
        )
    return (healthy + own) // 2


def answered(case: Case, folder: Path) -> dict[str, Any]:
    """Run the job of a case out of memory, prove the advice, and return the answer beside what is expected."""
    began = time.monotonic()
    limit = limit_of(case, folder)
    with started("launch", "--no-watch", *arguments(case, folder / "run", case.flags), limit=limit) as job:
        log = "".join(job.communicate())
    row: dict[str, Any] = {"case": case.name, "limit": limit, "failed": job.returncode}
    with started("inspect", str(folder / "run"), "--prove", "--yes", "--json", "--no-cache") as job:
        text, error = job.communicate()
    row["seconds"] = round(time.monotonic() - began)
    if job.returncode:
        return row | {"error": error[-600:], "log": log[-800:]}
    report = json.loads(text)
    data, rerun = report["data"], report["data"]["rerun"]
    applied = [one for one in data["considered"] if one["fits"]][-1] if rerun else None
    said = f"{applied['changes']}" if applied else data["not_applied"]
    return row | {
        "answer": report["verdict"]["class"], "said": said, "right": case.expected in said, "room": data["room_bytes"],
        "needed": data["needed_bytes"], "predicted": applied and applied["predicted_bytes"],
        "measured": rerun and rerun["peak_bytes"], "margin": data["margin"], "why": report["findings"][0]["why"],
        "steps": rerun and rerun["steps"], "reruns": data["reruns"],
    }  # fmt: skip


def main() -> None:
    """Print one line a case; arguments select cases by number, `--kept-back` those that were kept back."""
    words = sys.argv[1:]
    cases = KEPT_BACK if "--kept-back" in words else CASES
    for number in [int(word) for word in words if word.isdecimal()] or range(len(cases)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = answered(cases[number], Path(folder))
            except RuntimeError as error:
                row = {"case": cases[number].name, "error": str(error)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
