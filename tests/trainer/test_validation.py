"""Test validation: the same loss on every mesh, every `freq` steps, and no effect on the training."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.config import ConfigError, JobConfig, load_for_training, validate
from trainer.data.source import held_out_documents, training_documents

Run = Any
Train = Callable[..., Run]
VALIDATION = ["--validation.enable", "--validation.freq", "3", "--validation.steps", "2"]
LINE = re.compile(r"validate step: +(\d+)  loss: +([\d.]+)")


def validation_losses(run: Run) -> dict[int, float]:
    """Return {step: validation loss} as printed by rank 0."""
    text = (run.folder / "output" / "rank_0.log").read_text()
    return {int(step): float(loss) for step, loss in LINE.findall(text)}


@pytest.mark.slow
def test_validation_is_the_same_on_every_mesh_and_changes_no_step(run_once: Train, fsdp: Run) -> None:
    tensorboard = ["--metrics.enable_tensorboard"]
    sharded = ["--training.local_batch_size", "4", "--validation.local_batch_size", "4"]
    two = run_once("validated", 2, *VALIDATION, *sharded, *tensorboard)
    assert two.losses() == fsdp.losses()
    losses = validation_losses(two)
    assert list(losses) == [1, 3, 6]
    assert losses[6] < losses[1]
    assert [line["tags"] for line in two.lines() if "eval" in line["tags"]] != []
    assert two.lines()[2]["phases"]["eval"] > 0
    tags = (
        EventAccumulator(str(next((two.folder / "tb").iterdir())))
        .Reload()
        .Scalars("validation_metrics/global_avg_loss")
    )
    assert [event.step for event in tags] == [1, 3, 6]
    whole = ["--training.local_batch_size", "8"]
    tensor = run_once("validated_tp", 2, *VALIDATION, *whole, "--parallelism.tensor_parallel_degree", "2")
    assert validation_losses(tensor) == pytest.approx(losses, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "flags"),
    [
        ("1F1B", 2, []),
        ("Interleaved1F1B", 4, ["--parallelism.tensor_parallel_degree", "2"]),
        ("ZBVZeroBubble", 4, ["--parallelism.context_parallel_degree", "2"]),
    ],
)
def test_a_pipeline_validates_as_one_rank_does(
    run_once: Train, train: Train, tmp_path: Path, name: str, ranks: int, flags: list[str]
) -> None:
    both = [
        *VALIDATION,
        "--training.local_batch_size",
        "8",
        "--validation.local_batch_size",
        "6",
        "--training.steps",
        "3",
    ]
    alone = run_once("validated_alone", 1, *both)
    schedule = ["--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule", name]
    piped = train(tmp_path, ranks, *both, *schedule, *flags)
    assert piped.returncode == 0, piped.output
    assert validation_losses(piped) == pytest.approx(validation_losses(alone), abs=2e-4)
    assert piped.losses() == pytest.approx(alone.losses(), rel=1e-5)


def test_held_out_documents_are_no_training_documents() -> None:
    trained = set(training_documents(3))
    held_out = list(held_out_documents(3))
    assert len(held_out) == 100
    assert not trained & set(held_out)
    words = {word for text in trained for word in text.strip(".").split()}
    assert {word for text in held_out for word in text.strip(".").split()} <= words


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("validation", "seq_len", 4096, "validation.seq_len 4096 does not fit training.seq_len 2048"),
    ],
)
def test_what_cannot_be_validated_is_refused(section: str, key: str, value: int, says: str) -> None:
    config = JobConfig()
    config.validation.enable = True
    setattr(getattr(config, section), key, value)
    with pytest.raises(ConfigError, match=re.escape(says)):
        validate(config, 2)


def test_validation_data_that_are_missing_are_refused(tmp_path: Path) -> None:
    flags = ["--validation.dataset", "c4_validation"]
    assert not load_for_training(flags).validation.enable
    with pytest.raises(ConfigError) as caught:
        load_for_training([*flags, "--validation.enable"])
    assert "--validation.dataset_path" in caught.value.hint
    assert load_for_training([*flags, "--validation.enable", "--validation.dataset_path", str(tmp_path)])
