"""The message of a resumed run before its first step: whether it continues as the interrupted run would have."""

import json
import shutil
import zlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from analyzers.errors import InputError
from trainer.config import JobConfig
from trainer.config.mesh import Degrees
from trainer.data.loader import Loader, Share
from trainer.distributed import seed_step
from trainer.resume import Agreement, audit, made_with
from workbench.launch.plan import Request, plan, refuse_missing_checkpoint
from workbench.launch.run import run

Run = Any
Train = Callable[..., Run]
TEXT = ["one two three four five six seven"] * 9


def made(config: JobConfig, degrees: Degrees | None = None, text: list[str] = TEXT, seed: int = 7) -> dict[str, Any]:
    """Return the settings that a checkpoint of such a run stores, as read from its file."""
    loader = Loader(text, 8, Share(1))
    return json.loads(json.dumps(made_with(config, degrees or Degrees(), loader, seed, torch.__version__)))


def job() -> JobConfig:
    """Return the configuration of a run of twenty steps with a changing learning rate."""
    config = JobConfig()
    config.training.steps, config.lr_scheduler.warmup_steps, config.training.local_batch_size = 20, 4, 4
    return config


def changed(key: str, value: object) -> JobConfig:
    """Return the same configuration with another value of one key."""
    config = deepcopy(job())
    section, name = key.split(".")
    setattr(getattr(config, section), name, value)
    return config


def test_an_equal_run_goes_on_exactly() -> None:
    assert audit(made(job()), made(job()), 6).agreement is Agreement.EXACT


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (made(changed("training.seq_len", 64)), "training.seq_len was 2048, is 64: sequences are cut at other tokens"),
        (made(changed("training.local_batch_size", 2)), "sequences of a step was 4, is 2: each step takes other data"),
        (made(job(), Degrees(dp_shard=2)), "sequences of a step was 4, is 8"),
        (made(job(), text=TEXT[1:]), "training data was"),
        (made(job(), seed=8), "seed was 7, is 8: other random numbers"),
        (made(changed("optimizer.lr", 1e-3)), "learning rate of step 7 was 0.000"),
        (made(changed("training.steps", 30)), "learning rate of step 7 was"),
        (made(changed("lr_scheduler.decay_type", "cosine")), "learning rate of step 7 was"),
        (made(changed("optimizer.beta2", 0.9)), "optimizer.beta2 was 0.95, is 0.9"),
        (made(changed("training.mixed_precision_param", "float32")), "mixed_precision_param was bfloat16, is float32"),
        (made(changed("model.flavor", "debugmodel_large")), "model was llama3 debugmodel, is llama3 debugmodel_large"),
        ({**made(job()), "settings": None}, "what the checkpoint was made with is unknown"),
        (None, "what the checkpoint was made with is unknown"),
    ],
)  # fmt: skip
def test_what_does_not_match_is_named_with_its_consequence(now: Any, says: str) -> None:
    before = made(job()) if now and now["settings"] else now
    result = audit(before, now or made(job()), 6)
    assert result.agreement is Agreement.DIFFERENT
    assert says in result.text(Path("step-6"), 6)


def test_another_rate_is_named_where_the_schedule_before_has_ended() -> None:
    result = audit(made(job()), made(changed("optimizer.lr", 1e-3)), 20)
    assert [str(mismatch) for mismatch in result.mismatches] == ["optimizer.lr was 0.0008, is 0.001: another schedule"]
    longer = changed("lr_scheduler.total_steps", 30)
    shorter_training = deepcopy(longer)
    shorter_training.training.steps = 6
    assert audit(made(shorter_training), made(longer), 6).agreement is Agreement.EXACT


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ("missing", "does not exist", "the folder of a step"),
        ("run", "is not a complete checkpoint", "run/checkpoint/step-3"),
        ("run/checkpoint/step-3", "", ""),
    ],
)
def test_a_missing_initial_checkpoint_is_refused_before_a_process_starts(
    tmp_path: Path, given: str, says: str, hint: str
) -> None:
    saved = tmp_path / "run" / "checkpoint" / "step-3"
    saved.mkdir(parents=True)
    (saved / ".metadata").touch()
    flags = ("--checkpoint.enable", "--checkpoint.initial_load_path", str(tmp_path / given))
    request = Request(overrides=(*flags, "--job.dump_folder", str(tmp_path / "new")))
    # It may not be there yet when a job is planned.
    job = plan(request)
    if not says:
        refuse_missing_checkpoint(job)
        return
    with pytest.raises(InputError, match=says) as caught:
        run(request)
    assert hint in caught.value.hint


def test_a_schedule_that_differs_only_in_the_past_goes_on_exactly() -> None:
    constant = changed("lr_scheduler.decay_ratio", 0.0)
    warmer = deepcopy(constant)
    warmer.lr_scheduler.warmup_steps = 6
    assert audit(made(constant), made(warmer), 6).agreement is Agreement.EXACT
    assert audit(made(constant), made(warmer), 5).agreement is Agreement.EXACT
    assert audit(made(constant), made(warmer), 3).agreement is Agreement.DIFFERENT


def test_another_mesh_with_the_same_batch_differs_by_rounding_alone() -> None:
    now = made(changed("training.local_batch_size", 2), Degrees(dp_shard=2))
    result = audit(made(job()), now, 6)
    assert result.agreement is Agreement.ROUNDING
    assert "mesh was one rank, is dp_shard 2: sums are rounded in another order" in result.text(Path("step-6"), 6)


def test_what_is_not_loaded_is_said() -> None:
    result = audit(made(job()), made(job()), 6, ["optimizer"])
    assert "optimizer was saved, is not loaded: it starts anew" in result.text(Path("step-6"), 6)


def test_stages_of_a_pipeline_have_random_numbers_of_their_own_in_each_step() -> None:
    def numbers(*place: int) -> list[float]:
        seed_step(*place)
        return torch.rand(4).tolist()

    assert numbers(7, 0, 3) == numbers(7, 0, 3)
    assert numbers(7, 0, 3) == torch.rand(4, generator=torch.manual_seed(zlib.crc32(b"7/0/3"))).tolist()
    others = [numbers(7, 1, 3), numbers(7, 0, 4), numbers(8, 0, 3)]
    assert numbers(7, 0, 3) not in others


@pytest.mark.slow
def test_a_run_says_before_its_first_step_what_does_not_match(train: Train, fsdp: Run, tmp_path: Path) -> None:
    flags = ["--checkpoint.enable", "--checkpoint.load_only", "--training.local_batch_size", "4"]
    for name, ranks, more in (("same", 2, []), ("other", 1, ["--optimizer.lr", "1e-3", "--debug.seed", "5"])):
        shutil.copytree(fsdp.folder / "checkpoint" / "step-3", tmp_path / name / "checkpoint" / "step-3")
        run = train(tmp_path / name, ranks, *flags, *more)
        before_first_step = run.output.partition("step:  4")[0]
        resumed = run.manifest()["resumed"]
        if name == "same":
            assert resumed["agreement"] == "exact"
            assert "the run goes on exactly" in before_first_step
            assert "the run goes on exactly" in run.manifest()["notes"][0]
            assert run.losses() == {step: loss for step, loss in fsdp.losses().items() if step > 3}
        else:
            assert resumed["agreement"] == "different"
            for what in ("learning rate of step 4", "seed was 7, is 5", "mesh was dp_shard 2, is one rank"):
                assert what in before_first_step


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_refused_before_it_is_read(train: Train, fsdp: Run, tmp_path: Path) -> None:
    path = fsdp.folder / "checkpoint" / "step-3"
    flags = ["--checkpoint.enable", "--checkpoint.initial_load_path", str(path), "--model.flavor", "debugmodel_large"]
    run = train(tmp_path, 1, *flags)
    assert run.returncode == 1
    assert "holds the weights of llama3 debugmodel, and this run trains llama3 debugmodel_large" in run.output


@pytest.mark.slow
def test_a_run_whose_checkpoints_hold_weights_only_says_that_it_starts_anew(train: Train, tmp_path: Path) -> None:
    saving = ["--training.steps", "1", "--checkpoint.enable"]
    assert "Not resumed" not in train(tmp_path, 1, *saving).output
    again = train(tmp_path, 1, *saving)
    assert "Not resumed" in again.output
    assert again.manifest()["notes"][0].startswith("Not resumed")
    assert "--checkpoint.no_last_save_model_only" in again.output
    assert again.returncode == 0
