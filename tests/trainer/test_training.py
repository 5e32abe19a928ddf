"""Train whole runs: equal losses on every mesh, exact resume, and the files of a run."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from analyzers import incident

pytestmark = pytest.mark.slow
PAIR = re.compile(r"(\w+):\s+([^\s(]+)")
DDP = ["--parallelism.data_parallel_shard_degree", "1", "--parallelism.data_parallel_replicate_degree"]
CHECKPOINTS = ["--checkpoint.enable", "--checkpoint.interval", "3", "--training.local_batch_size"]
Run = Any
Train = Callable[..., Run]


@pytest.mark.parametrize(
    ("name", "ranks", "flags"),
    [
        ("single", 1, ["--training.local_batch_size", "8"]),
        ("accumulated", 1, ["--training.local_batch_size", "2", "--training.global_batch_size", "8"]),
        ("compiled", 1, ["--training.local_batch_size", "8", "--compile.enable", "--compile.backend", "aot_eager"]),
        ("ddp", 2, [*DDP, "2", "--training.local_batch_size", "4", "--activation_checkpoint.mode", "full"]),
        ("hsdp", 4, ["--parallelism.data_parallel_replicate_degree", "2", "--training.local_batch_size", "2",
                     "--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op"]),
    ],
)  # fmt: skip
def test_losses_are_equal_on_every_mesh(run_once: Train, fsdp: Run, name: str, ranks: int, flags: list[str]) -> None:
    run = run_once(name, ranks, *flags)
    assert run.losses() == pytest.approx(fsdp.losses(), rel=1e-6)
    norms = [[line["grad_norm"] for line in lines] for lines in (run.lines(), fsdp.lines())]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_the_loss_falls(fsdp: Run) -> None:
    losses = list(fsdp.losses().values())
    assert losses[-1] < 0.8 * losses[0]


def test_a_resumed_run_goes_on_exactly_and_repeats_bit_by_bit(train: Train, fsdp: Run, tmp_path: Path) -> None:
    shutil.copytree(fsdp.folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoint" / "step-6")
    resumed = train(
        tmp_path, 2, *CHECKPOINTS, "4", "--checkpoint.async_mode", "async", "--checkpoint.keep_latest_k", "1"
    )
    assert resumed.returncode == 0, resumed.output
    assert resumed.losses() == {step: loss for step, loss in fsdp.losses().items() if step > 3}
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["step-6"]
    [earlier] = (tmp_path / "previous").iterdir()
    assert json.loads((earlier / "run.json").read_text()) == fsdp.manifest()
    assert (earlier / "steps" / "rank_1.jsonl").read_text() == (fsdp.folder / "steps" / "rank_1.jsonl").read_text()


def test_a_checkpoint_loads_on_another_mesh(train: Train, fsdp: Run, tmp_path: Path) -> None:
    shutil.copytree(fsdp.folder / "checkpoint", tmp_path / "checkpoint")
    single = train(tmp_path, 1, *CHECKPOINTS, "8", "--checkpoint.load_step", "3", "--checkpoint.load_only")
    assert single.losses() == pytest.approx({s: loss for s, loss in fsdp.losses().items() if s > 3}, rel=1e-6)


def test_weights_alone_start_another_run(train: Train, fsdp: Run, tmp_path: Path) -> None:
    start = ["--checkpoint.initial_load_path", str(fsdp.folder / "checkpoint" / "step-6"), "--training.steps", "2"]
    run = train(tmp_path, 1, *CHECKPOINTS, "8", *start)
    assert list(run.losses()) == [1, 2]
    assert run.losses()[1] < fsdp.losses()[6]
    again = train(tmp_path, 1, *CHECKPOINTS, "8", *start)
    assert list(again.losses()) == [1, 2], "the last checkpoint holds weights only, so nothing is resumed"


def test_a_missing_checkpoint_is_an_error(train: Train, tmp_path: Path) -> None:
    run = train(tmp_path, 1, *CHECKPOINTS, "8", "--checkpoint.load_step", "9")
    assert run.returncode == 1
    assert "error: " in run.output
    advice = f"choose a complete one: {tmp_path / 'checkpoint'} has none"
    assert f"hint: {advice}" in run.output
    found = incident.analyze(run.folder).findings[0]
    assert "CheckpointError" in found.title
    assert found.next == f"C{advice[1:]}."


def test_real_ranks_do_not_count_themselves_by_a_variable(train: Train, tmp_path: Path) -> None:
    """NGPU is the number of ranks for scripts that start them, and where one process stands for all of them."""
    done = train(tmp_path, 1, "--training.steps", "1", "--parallelism.data_parallel_shard_degree", "1", NGPU="4")
    assert done.returncode == 0, done.output


def test_the_console_line_reads_as_torchtitans(fsdp: Run) -> None:
    lines = [line for line in fsdp.output.splitlines() if "step:" in line]
    assert len(lines) == 12, "six steps of two ranks"
    pairs = dict(PAIR.findall(lines[-1]))
    assert set(pairs) == {"step", "loss", "grad_norm", "memory", "tps", "tflops", "mfu"}
    assert (pairs["step"], pairs["mfu"]) == ("6", "N/A")
    assert float(pairs["loss"]) == pytest.approx(fsdp.losses()[6], abs=1e-4)
    assert pairs["memory"].endswith("GiB")


def test_run_json_says_what_was_run(fsdp: Run) -> None:
    manifest = fsdp.manifest()
    assert manifest["schema"] == "workbench.run/1"
    assert (manifest["status"], manifest["last_step"], manifest["world_size"]) == ("completed", 6, 2)
    assert manifest["mesh"] == {"dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 1, "pp": 1, "ep": 1}
    assert (manifest["backend"], manifest["device"], manifest["attempt"]) == ("gloo", "cpu", 0)
    assert manifest["config"]["training"]["seq_len"] == 64
    assert set(manifest["hosts"]) == {"0", "1"}
    assert 0 < manifest["ended_ns"] - manifest["started_ns"] < 100e9


def test_tensorboard_has_torchtitans_tags(fsdp: Run) -> None:
    [file] = (fsdp.folder / "tb").glob("*/events*")
    events = EventAccumulator(str(file)).Reload()
    tags = set(events.Tags()["scalars"])
    assert {"loss_metrics/global_avg_loss", "grad_norm", "throughput(tps)", "tflops", "lr", "n_tokens_seen"} <= tags
    assert {"memory/max_reserved(GiB)", "time_metrics/data_loading(%)", "time_metrics/end_to_end(s)"} <= tags
    assert "mfu(%)" not in tags, "nobody knows what a CPU can do"
    losses = {event.step: event.value for event in events.Scalars("loss_metrics/global_avg_loss")}
    assert losses == pytest.approx(fsdp.losses())
    assert [event.value for event in events.Scalars("n_tokens_seen")] == [step * 8 * 64 for step in range(1, 7)]


def test_steps_are_recorded_with_their_phases(fsdp: Run) -> None:
    first, *others = fsdp.lines(rank=1)
    assert {"first", "gc"} <= set(first["tags"])
    assert [line["step"] for line in others if "checkpoint" in line["tags"]] == [3, 6]
    assert {"data_wait", "fwd", "bwd", "grad_clip", "optim", "loss_sync", "log"} <= set(first["phases"])
    assert all(line["tokens"] == 4 * 64 for line in fsdp.lines(rank=1))


def test_local_text_is_trained_on_and_the_configuration_kept(train: Train, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"the {n}th line of a short story "}) + "\n" for n in range(200)))
    data = ["--training.dataset_path", str(text), "--training.steps", "2", "--training.batch_size", "2"]
    run = train(tmp_path / "run", 1, *data, "--job.print_config", "--job.save_config_file", "config.json")
    assert run.returncode == 0, run.output
    saved = json.loads((run.folder / "config.json").read_text())
    assert saved == run.manifest()["config"]
    assert saved["training"]["local_batch_size"] == 2
    assert f"Running with configs: {json.dumps(saved)}" in run.output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--training.dataset", "cc12m"], "data set 'cc12m' is not shipped"),
        (["--model.name", "gpt_oss"], "there is no model 'gpt_oss'"),
        (["--training.global_batch_size", "9"], "is not a multiple of 8"),
        (["--training.step", "2"], "did you mean training.steps"),
    ],
)
def test_mistakes_are_told_before_the_first_step(train: Train, tmp_path: Path, flags: list[str], said: str) -> None:
    run = train(tmp_path, 1, *flags)
    assert run.returncode == 1
    [place] = [match.start() for match in re.finditer("^error: ", run.output, re.MULTILINE)]
    assert said in run.output[place : run.output.index("Traceback")]
    assert not (tmp_path / "run.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains(train: Train, tmp_path: Path) -> None:
    run = train(tmp_path, 1, "--training.mixed_precision_param", "bfloat16", "--metrics.log_freq", "2")
    assert run.returncode == 0, run.output
    assert (run.manifest()["device"], run.manifest()["backend"]) == ("cuda", "nccl")
    assert run.losses()[6] < run.losses()[1]
    assert run.losses()[3] is None, "steps that are not logged do not wait for the device"


def test_a_seed_checkpoint_is_saved_instead_of_training(run_once: Train, train: Train, tmp_path: Path) -> None:
    """Two ranks with another seed start from the weights that one rank saved, and get the losses of one rank."""
    saving = ["--checkpoint.enable", "--checkpoint.create_seed_checkpoint"]
    seed = run_once("seed", 1, *saving, "--debug.seed", "9")
    assert [path.name for path in (seed.folder / "checkpoint").iterdir()] == ["step-0"]
    assert seed.lines() == []
    assert seed.manifest()["last_step"] == 0
    start = ["--checkpoint.enable", "--checkpoint.load_only", "--training.steps", "2"]
    shutil.copytree(seed.folder / "checkpoint", tmp_path / "one" / "checkpoint")
    one = train(tmp_path / "one", 1, *start, "--training.local_batch_size", "8")
    path = ["--checkpoint.initial_load_path", str(seed.folder / "checkpoint" / "step-0")]
    two = train(tmp_path / "two", 2, *start, *path, "--training.local_batch_size", "4")
    assert one.losses() == pytest.approx(two.losses(), rel=1e-5)
    assert len(one.losses()) == 2
    assert not (tmp_path / "two" / "checkpoint").exists()
