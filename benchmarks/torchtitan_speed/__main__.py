"""Compare the step times of our trainer and torchtitan 0.2 on a CPU, in turn.

    python -m benchmarks.torchtitan_speed --site FOLDER ...
    pip install --target FOLDER --no-deps torchtitan==0.2.2 torchdata
    pip install --target FOLDER datasets tokenizers tyro tomli einops pillow

Both train a Llama of the same shape on the same text with the same batch and one thread per rank. The time of a step is
measured from its beginning to that of the next step; processor time is that of the process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.start_job import ROOT

STEPS, WARM_UP = 30, 5
BATCH, LENGTH = 4, 128
COMMON = (
    *("--training.local_batch_size", str(BATCH), "--training.seq_len", str(LENGTH), "--training.steps", str(STEPS)),
    *("--training.mixed_precision_param", "float32", "--activation_checkpoint.mode", "none", "--metrics.log_freq", "1"),
    *("--optimizer.implementation", "fused", "--lr_scheduler.warmup_steps", "2", "--debug.seed", "7"),
)
TRACES = ("--profiling.enable_profiling", "--profiling.profile_freq", "10")
WAYS = {
    "torchtitan": ("torchtitan", ()),
    "torchtitan, traces": ("torchtitan", TRACES),
    "ours": ("ours", ()),
    "ours, traces": ("ours", TRACES),
    "ours, traces and snapshots": ("ours", (*TRACES, "--profiling.enable_memory_snapshot")),
}


def arguments(who: str, folder: Path, extra: tuple[str, ...]) -> list[str]:
    """Return the command line of a run of the trainer `who`."""
    flavor = "debugmodel_large" if who == "ours" else "debugmodel"
    own = ["--model.flavor", flavor, "--job.dump_folder", str(folder / "run"), *COMMON, *extra]
    if who == "ours":
        return own
    data = ["--training.dataset", "c4_test", "--training.dataset_path", str(folder.parent / "text")]
    return ["--model.name", "llama3", "--model.hf_assets_path", str(folder.parent / "tokenizer"), *data, *own]


def measure(way: str, ranks: int, folder: Path, sites: list[str]) -> list[tuple[float, float]]:
    """Return the (wall, processor) seconds of each step of rank 0.

    Raises:
        RuntimeError: The run failed.
    """
    who, extra = WAYS[way]
    folder.mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "-m"]
    rank = ["benchmarks.torchtitan_speed.rank", who, str(folder / "times"), *arguments(who, folder, extra)]
    quiet = {"KINETO_LOG_LEVEL": "6", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sites])} | quiet
    done = subprocess.run([*launch, *rank], capture_output=True, text=True, env=environment, cwd=folder, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-9000:])
    rows = [tuple(map(float, line.split())) for line in (folder / "times").read_text().splitlines()]
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(rows[WARM_UP:], rows[WARM_UP + 1 :], strict=False)]


def write_inputs(folder: Path) -> None:
    """Write the training text, and a byte tokenizer in the format that torchtitan reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from trainer.data.source import training_documents

    (folder / "text").mkdir()
    with (folder / "text" / "data.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(training_documents(7)):
            file.write(json.dumps({"text": text if isinstance(text, str) else bytes(text).decode()}) + "\n")
            if number > 5000:
                break
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters | {"<s>": 256, "</s>": 257}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))


def rows(times: dict[str, list[tuple[float, float]]], ranks: int) -> Iterator[str]:
    """Yield a row for each way to run: median time, mean processor time, and ratios to torchtitan without recorders."""
    # The steps of which traces and snapshots are made are few, and count in the mean.
    found = {
        way: (statistics.median(wall for wall, _ in pairs), statistics.mean(cpu for _, cpu in pairs))
        for way, pairs in times.items()
    }
    base = found["torchtitan"]
    for way, (wall, cpu) in found.items():
        speed = f"{wall * 1e3:.1f} | {BATCH * LENGTH / wall:,.0f} | {cpu * 1e3:.1f}"
        yield f"| {ranks} | {way} | {speed} | {wall / base[0]:.2f} | {cpu / base[1]:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", action="append", default=[], help="folder with torchtitan and what it needs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="torchtitan is always among them")
    asked = parser.parse_args()
    ways = [way for way in WAYS if way == "torchtitan" or not asked.way or way in asked.way]
    print("| ranks | trainer | step, ms | tokens/s a rank | processor, ms a step | step, ratio | processor, ratio |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    sys.path += asked.site
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_inputs(folder)
        for ranks in asked.ranks or (1, 2):
            times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for turn in range(asked.rounds):
                for number, way in enumerate(ways):
                    times[way] += measure(way, ranks, folder / f"{ranks}_{turn}_{number}", asked.site)
            print("\n".join(rows(times, ranks)), flush=True)


if __name__ == "__main__":
    main()
