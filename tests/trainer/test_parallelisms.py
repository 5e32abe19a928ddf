"""Tensor, context and pipeline parallelism: the same losses and norms as on one rank, and checkpoints for any mesh."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mesh_flags import BRIEF, COMPILED, CONTEXT, COPIES, PIPELINE, TENSOR, assert_same_curve

from ranks import start
from trainer.config import ConfigError, JobConfig, checked_mesh, validate
from trainer.config.checks import nearest_mesh, with_degrees
from trainer.config.converters import check_devices
from trainer.config.mesh import BY_NAME, Degrees, check_microbatches
from trainer.config.sections import Parallelism
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, plan, refuse_without_device

Run = Any
Train = Callable[..., Run]
LOOPED = ["--parallelism.pipeline_parallel_schedule", "Interleaved1F1B"]
CHECKPOINTS = ["--checkpoint.enable", "--checkpoint.interval", "3", "--checkpoint.no_last_save_model_only"]
LENGTH, BATCH = 64, 8


@pytest.fixture(scope="module")
def alone(run_once: Train) -> Run:
    """Fixture: a run of one rank, whose losses all other runs must have."""
    return run_once("single", 1, "--training.local_batch_size", "8")


@pytest.fixture(scope="module")
def tensor(run_once: Train) -> Run:
    """Fixture: a run of two ranks with tensor parallelism."""
    return run_once("tp2", 2, *TENSOR, *CHECKPOINTS, "--training.local_batch_size", "8")


@pytest.fixture(scope="module")
def sharded_tensor(run_once: Train) -> Run:
    """Fixture: a run with FSDP2 over two ranks times tensor parallelism over two ranks."""
    return run_once("fsdp2_tp2", 4, *TENSOR, *CHECKPOINTS, "--training.local_batch_size", "4")


def groups(run: Run, rank: int) -> set[str]:
    """Return the names of the process groups that a rank belongs to."""
    text = (run.folder / "dumps" / f"groups_{rank}.json").read_text()
    return {group["desc"] for group in json.loads(text)["groups"].values()}


def assert_tokens_are_counted_once(run: Run) -> None:
    """Check that the tokens of all ranks add up to those of the step, however many ranks share a sequence."""
    ranks = range(run.manifest()["world_size"])
    assert sum(run.lines(rank)[0]["tokens"] for rank in ranks) == LENGTH * BATCH


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor", "sharded_tensor"])
def test_losses_are_equal_where_ranks_share_a_product(request: pytest.FixtureRequest, alone: Run, name: str) -> None:
    run = request.getfixturevalue(name)
    assert_same_curve(run, alone)
    assert_tokens_are_counted_once(run)
    assert run.manifest()["mesh"]["tp"] == 2
    assert run.manifest()["parameters"] == alone.manifest()["parameters"]


@pytest.mark.slow
def test_a_copy_of_tensor_parallel_ranks_averages_gradients(run_once: Train, alone: Run) -> None:
    run = run_once("ddp2_tp2", 4, *TENSOR, *COPIES, "--training.local_batch_size", "4", *BRIEF)
    assert_same_curve(run, alone)
    assert groups(run, rank=3) >= {"mesh_dp_replicate", "mesh_tp"}


@pytest.mark.slow
def test_groups_are_named_after_their_axis(sharded_tensor: Run) -> None:
    assert groups(sharded_tensor, rank=1) == {"default_pg", "mesh_dp_shard", "mesh_tp"}


@pytest.mark.slow
def test_tensor_parallel_ranks_resume_exactly(train: Train, tensor: Run, tmp_path: Path) -> None:
    shutil.copytree(tensor.folder / "checkpoint" / "step-3", tmp_path / "checkpoint" / "step-3")
    resumed = train(tmp_path, 2, *TENSOR, *CHECKPOINTS, "--training.local_batch_size", "8")
    assert resumed.losses() == {step: loss for step, loss in tensor.losses().items() if step > 3}, resumed.output


@pytest.mark.slow
def test_what_tensor_parallel_ranks_saved_loads_on_one(train: Train, sharded_tensor: Run, tmp_path: Path) -> None:
    shutil.copytree(sharded_tensor.folder / "checkpoint", tmp_path / "checkpoint")
    flags = ["--checkpoint.load_step", "3", "--checkpoint.load_only", "--training.local_batch_size", "8"]
    single = train(tmp_path, 1, *CHECKPOINTS, *flags)
    expected = {step: loss for step, loss in sharded_tensor.losses().items() if step > 3}
    assert single.losses() == pytest.approx(expected, rel=1e-5), single.output


@pytest.fixture(scope="module")
def context(run_once: Train) -> Run:
    """Fixture: a run of two ranks with context parallelism, which also shard the weights."""
    return run_once("cp2", 2, *CONTEXT, *CHECKPOINTS, "--training.local_batch_size", "8")


@pytest.mark.slow
def test_losses_are_equal_where_ranks_share_a_sequence(context: Run, alone: Run) -> None:
    assert_same_curve(context, alone)
    assert_tokens_are_counted_once(context)
    mesh = context.manifest()["mesh"]
    assert (mesh["cp"], mesh["dp_shard"]) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "named"),
    [
        ("fsdp2_cp2", ["--training.local_batch_size", "4"], {"mesh_dp_shard", "mesh_cp"}),
        ("ddp2_cp2", ["--training.local_batch_size", "4", "--parallelism.data_parallel_replicate_degree", "2"],
         {"mesh_dp_replicate", "mesh_cp"}),
        ("cp2_tp2", ["--training.local_batch_size", "8", *TENSOR, "--activation_checkpoint.mode", "full"],
         {"mesh_cp", "mesh_tp"}),
    ],
)  # fmt: skip
def test_a_shared_sequence_goes_with(run_once: Train, alone: Run, name: str, flags: list[str], named: set[str]) -> None:
    run = run_once(name, 4, *CONTEXT, *flags, *BRIEF)
    assert_same_curve(run, alone)
    assert groups(run, rank=2) == {"default_pg", *named}


@pytest.mark.slow
def test_experts_see_the_tokens_of_a_shared_sequence(run_once: Train) -> None:
    experts = ["--model.name", "llama4", "--training.local_batch_size", "8"]
    alone = run_once("experts", 1, *experts)
    assert_same_curve(run_once("cp2_ep2", 2, *experts, *CONTEXT, "--parallelism.expert_parallel_degree", "2"), alone)


@pytest.mark.slow
def test_what_shared_sequences_trained_loads_on_tensor_parallel_ranks(
    train: Train, context: Run, tmp_path: Path
) -> None:
    shutil.copytree(context.folder / "checkpoint", tmp_path / "checkpoint")
    flags = ["--checkpoint.load_step", "3", "--checkpoint.load_only", "--training.local_batch_size", "8"]
    run = train(tmp_path, 2, *TENSOR, *CHECKPOINTS, *flags)
    expected = {step: loss for step, loss in context.losses().items() if step > 3}
    assert run.losses() == pytest.approx(expected, rel=1e-5), run.output


ATTENTION = """
import torch, torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention as usual
from trainer.parallel.context_parallel import Layout, RingAttention, attend_masked
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
whole = [torch.randn(2, 3, 8 * size, 4, requires_grad=True) for _ in range(4)]
expected = usual(*whole[:3], is_causal=True)
expected.backward(whole[3])
for balanced in (True, False):
    layout = Layout(dist.group.WORLD, balanced)
    positions = layout.positions(8 * size, rank)
    for attend in (RingAttention.apply, attend_masked):
        mine = [tensor.detach()[:, :, positions].clone().requires_grad_() for tensor in whole]
        out = attend(*mine[:3], layout)
        torch.testing.assert_close(out, expected[:, :, positions])
        out.backward(mine[3])
        for one, part in zip(whole[:3], mine[:3]):
            torch.testing.assert_close(part.grad, one.grad[:, :, positions])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_attend_together_like_one(tmp_path: Path) -> None:
    """The gradients are compared, too, because a wrong forward pass would change them."""
    (tmp_path / "attention.py").write_text(ATTENTION)
    start(str(tmp_path / "attention.py"), ranks=3)


@pytest.fixture(scope="module")
def pipeline(run_once: Train) -> Run:
    """Fixture: a run of two pipeline ranks with half of the layers each."""
    return run_once("pp2", 2, *PIPELINE, *CHECKPOINTS, "--training.local_batch_size", "8")


@pytest.mark.slow
def test_losses_are_equal_where_ranks_share_the_layers(pipeline: Run, alone: Run) -> None:
    """All ranks log the loss, which the last pipeline rank sends them."""
    assert_same_curve(pipeline, alone)
    assert_tokens_are_counted_once(pipeline)
    assert pipeline.manifest()["mesh"]["pp"] == 2
    assert pipeline.manifest()["parameters"] == alone.manifest()["parameters"]
    assert [pipeline.lines(rank)[0]["local_loss"] is None for rank in (0, 1)] == [True, False]
    assert "fwd_bwd" in pipeline.lines()[0]["phases"]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [name for name in BY_NAME.values() if name != "1F1B"])
def test_every_schedule_trains_the_same(run_once: Train, alone: Run, schedule: str) -> None:
    """The default schedule is left out, because the other tests use it."""
    flags = ["--parallelism.pipeline_parallel_schedule", schedule, "--training.local_batch_size", "8"]
    assert_same_curve(run_once(schedule, 2, *PIPELINE, *flags, *BRIEF), alone)


@pytest.mark.slow
def test_one_microbatch_on_several_stages_trains_the_same(run_once: Train, alone: Run) -> None:
    """PyTorch's 1F1B refuses fewer microbatches than stages; torchtitan's llama4_17bx128e.toml has one on four."""
    whole = ["--training.local_batch_size", "8", "--parallelism.pipeline_parallel_microbatch_size", "8"]
    assert_same_curve(run_once("pp2_one_microbatch", 2, *PIPELINE, *whole, *BRIEF), alone)


@pytest.mark.slow
def test_a_pipeline_adds_up_the_gradients_of_several_batches(run_once: Train, alone: Run) -> None:
    flags = ["--training.local_batch_size", "4", "--training.global_batch_size", "8"]
    assert_same_curve(run_once("pp2_accumulated", 2, *PIPELINE, *LOOPED, *flags), alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("fsdp2_pp2", ["--training.local_batch_size", "4", "--activation_checkpoint.mode", "full"]),
        ("ddp2_pp2", ["--training.local_batch_size", "4", "--parallelism.data_parallel_replicate_degree", "2"]),
        ("tp2_pp2", ["--training.local_batch_size", "8", *TENSOR]),
        ("cp2_pp2", ["--training.local_batch_size", "8", *CONTEXT, *LOOPED]),
    ],
)
def test_a_pipeline_goes_with(run_once: Train, alone: Run, name: str, flags: list[str]) -> None:
    run = run_once(name, 4, *PIPELINE, *flags, *BRIEF)
    assert_same_curve(run, alone)
    assert "mesh_pp" in groups(run, rank=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        pytest.param("hsdp_tp2", [*COPIES, *TENSOR, "--training.local_batch_size", "2"], marks=pytest.mark.rare),
        ("cp2_tp2_pp2", [*CONTEXT, *TENSOR, *PIPELINE, "--training.local_batch_size", "8"]),
    ],
)
def test_eight_ranks_in_three_dimensions_train_the_same(
    run_once: Train, alone: Run, name: str, flags: list[str]
) -> None:
    assert_same_curve(run_once(name, 8, *flags, *BRIEF), alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "flags"),
    [
        ("experts_tp2", 2, ["--training.local_batch_size", "8", "--parallelism.expert_tensor_parallel_degree", "2"]),
        ("experts_fsdp2_tp2", 4, ["--training.local_batch_size", "4"]),
    ],
)
def test_experts_that_are_split_train_the_same(run_once: Train, name: str, ranks: int, flags: list[str]) -> None:
    experts = ["--model.name", "llama4", "--training.local_batch_size", "8"]
    alone = run_once("experts", 1, *experts)
    assert_same_curve(run_once(name, ranks, *experts, *TENSOR, *flags, *BRIEF), alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("ep2_pp2", [*PIPELINE, "--training.local_batch_size", "4"]),
        ("hsdp_ep2", [*COPIES, "--training.local_batch_size", "2"]),
        ("tp2_ep2", [*TENSOR, "--training.local_batch_size", "4"]),
    ],
)
def test_shared_experts_go_with(run_once: Train, name: str, flags: list[str]) -> None:
    experts = ["--model.name", "llama4", "--training.local_batch_size", "8"]
    alone = run_once("experts", 1, *experts)
    shared = run_once(name, 4, *experts, *flags, "--parallelism.expert_parallel_degree", "2", *BRIEF)
    assert_same_curve(shared, alone)


@pytest.mark.slow
def test_a_checkpoint_of_a_pipeline_loads_where_layers_are_divided_otherwise(
    train: Train, pipeline: Run, tmp_path: Path
) -> None:
    expected = {step: loss for step, loss in pipeline.losses().items() if step > 3}
    for name, ranks, flags in (("looped", 2, [*PIPELINE, *LOOPED]), ("single", 1, []), ("fsdp", 2, [])):
        shutil.copytree(pipeline.folder / "checkpoint" / "step-3", tmp_path / name / "checkpoint" / "step-3")
        batch = ["--training.local_batch_size", "4" if name == "fsdp" else "8"]
        run = train(tmp_path / name, ranks, *flags, *CHECKPOINTS, *batch)
        assert run.losses() == pytest.approx(expected, rel=1e-5), run.output


def job(model: str = "llama3", **parallelism: int) -> JobConfig:
    """Return a configuration of the small model with these degrees."""
    config = JobConfig(parallelism=Parallelism(**parallelism))  # type: ignore[arg-type]
    config.model.name = model
    return config


def test_a_mesh_fills_the_world() -> None:
    found = validate(job(tensor_parallel_degree=2, data_parallel_replicate_degree=2), 8)
    assert found == Degrees(dp_replicate=2, dp_shard=2, tp=2)
    assert (found.data_parallel, found.per_batch) == (4, 2)


@pytest.mark.parametrize(
    ("schedule", "batch", "needed", "hint"),
    [
        ("Interleaved1F1B", 7, "a multiple of 2", "set training.local_batch_size to 8"),
        ("DualPipeV", 4, "at least 6", "set training.local_batch_size to 6"),
    ],
)
def test_the_nearest_batch_that_a_schedule_accepts_is_named(schedule: str, batch: int, needed: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"{schedule} on 3 ranks needs {needed} microbatches") as caught:
        check_microbatches(schedule, 1, batch, 3)
    assert caught.value.hint == hint
    check_microbatches(schedule, 1, int(hint.rsplit(maxsplit=1)[-1]), 3)


@pytest.mark.parametrize(
    ("config", "ranks", "says", "hint"),
    [
        (job(tensor_parallel_degree=2), 3, "tensor_parallel_degree 2 does not divide 3 ranks", "start 4 processes"),
        (
            job(tensor_parallel_degree=2, data_parallel_shard_degree=3),
            4,
            "data_parallel_shard_degree 3 x tensor_parallel_degree 2 is not 4 ranks",
            "set parallelism.data_parallel_shard_degree to 2",
        ),
        (job(tensor_parallel_degree=3), 8, "tensor_parallel_degree 3 does not divide 8", "tensor_parallel_degree to 2"),
        (
            job(tensor_parallel_degree=4, context_parallel_degree=3),
            16,
            "context_parallel_degree 3 x tensor_parallel_degree 4 does not divide 16 ranks",
            "set parallelism.context_parallel_degree to 2",
        ),
        (job(tensor_parallel_degree=0), 2, "parallelism.tensor_parallel_degree = 0", "give 1 or more"),
        (job(tensor_parallel_degree=4), 4, "tensor_parallel_degree 4 does not divide 2 key-value heads", "divisor"),
        (job(context_parallel_degree=3), 3, "seq_len 2048 cannot be cut into 6 equal chunks", "multiple of 6"),
        (job(pipeline_parallel_degree=3, pipeline_parallel_microbatch_size=3), 3, "microbatch_size 3", "divisor of 8"),
        (
            job(pipeline_parallel_degree=4, pipeline_parallel_microbatch_size=4),
            4,
            "1F1B on 4 ranks needs at least 4 microbatches in PyTorch, and gets 2",
            "to 16, or parallelism.pipeline_parallel_microbatch_size to 2, or the schedule to GPipe, which accepts any",
        ),
        (job(pipeline_parallel_degree=16), 16, "4 layers cannot make 16 stages", "layers_per_stage"),
        (job("llama4", tensor_parallel_degree=2, expert_tensor_parallel_degree=4), 2, "is neither 1 nor", "to 2"),
        (
            job("llama4", tensor_parallel_degree=2, expert_tensor_parallel_degree=2, expert_parallel_degree=2),
            2,
            "split, or divided among ranks, but not both",
            "set one of both",
        ),
        (job("flux"), 1, "there is no model 'flux'", "llama3"),
        (job("models.llama3"), 1, "there is no model 'models.llama3'", "llama3"),
    ],
)
def test_what_no_run_can_do_is_refused_before_it_starts(config: JobConfig, ranks: int, says: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(config, ranks)
    assert says in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("config", "ranks", "hint"),
    [
        # 3 ranks would fit the degree, but not the 4 attention heads.
        (job(tensor_parallel_degree=3), 4, "set parallelism.tensor_parallel_degree to 2"),
        (job(tensor_parallel_degree=8), 8, "give a divisor of 4, or set parallelism.tensor_parallel_degree to 2"),
        (job(pipeline_parallel_degree=16), 16, "set parallelism.pipeline_parallel_degree to 4"),
        (
            job(data_parallel_shard_degree=3, tensor_parallel_degree=2),
            4,
            "start 6 processes (--nproc 6 on one node), or set parallelism.data_parallel_shard_degree to 2",
        ),
        # 8 ranks would fit the degree, but not the heads.
        (job(tensor_parallel_degree=8), 7, "set parallelism.tensor_parallel_degree to 1"),
    ],
)
def test_the_hint_names_the_nearest_mesh_that_the_model_fits(config: JobConfig, ranks: int, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_mesh(config, ranks)
    assert hint in caught.value.hint
    assert ("start" in hint) == ("start" in caught.value.hint)


@pytest.mark.parametrize(("ranks", "degree"), [(4, 3), (8, 8), (16, 16), (12, 5)])
def test_the_nearest_mesh_can_be_trained_on(ranks: int, degree: int) -> None:
    config = job(tensor_parallel_degree=degree)
    changes = nearest_mesh(config, ranks)
    assert changes
    assert validate(with_degrees(config, changes), ranks)


def test_the_launcher_refuses_a_mesh_before_it_starts_a_process(tmp_path: Path) -> None:
    overrides = (*TENSOR, "--job.dump_folder", str(tmp_path / "run"))
    with pytest.raises(UsageProblem) as caught:
        plan(Request(module="llama3", config="llama3_debugmodel", nproc=3, nnodes=3, overrides=overrides))
    assert "tensor_parallel_degree 2 does not divide 9 ranks" in caught.value.message
    assert "start 8 processes" in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_an_unknown_schedule_is_refused() -> None:
    config = job(pipeline_parallel_degree=2)
    config.parallelism.pipeline_parallel_schedule = "2F"
    with pytest.raises(ConfigError) as caught:
        validate(config, 2)
    assert "pipeline_parallel_schedule = '2F'" in caught.value.message
    assert "Interleaved1F1B" in caught.value.hint


def test_a_schedule_that_is_not_loaded_cannot_be_left_out() -> None:
    config = job()
    config.checkpoint.exclude_from_loading = ["optimizer", "lr_scheduler"]
    with pytest.raises(ConfigError, match="the learning rate follows from the step"):
        validate(config, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "flags"),
    [
        pytest.param("compiled_tp2", 2, ["--training.local_batch_size", "8"], marks=pytest.mark.rare),
        ("compiled_fsdp2_tp2", 4, ["--training.local_batch_size", "4", "--activation_checkpoint.mode", "full"]),
        pytest.param("compiled_tp2_pp2", 4, [*PIPELINE, "--training.local_batch_size", "8"], marks=pytest.mark.rare),
    ],
)
def test_compiled_tensor_parallelism_trains_the_same(
    run_once: Train, alone: Run, name: str, ranks: int, flags: list[str]
) -> None:
    assert_same_curve(run_once(name, ranks, *TENSOR, *COMPILED, *flags, *BRIEF), alone)


def test_asynchronous_tensor_parallelism_needs_the_compiler_and_a_device() -> None:
    config = job(tensor_parallel_degree=2)
    config.parallelism.enable_async_tensor_parallel = True
    with pytest.raises(ConfigError, match=r"blocks are not compiled by backend inductor") as caught:
        validate(config, 2)
    assert "--compile.enable" in caught.value.hint
    config.compile.enable = True
    assert validate(config, 2).tp == 2
    check_devices(config, (8, 0))
    with pytest.raises(ConfigError, match=r"enable_async_tensor_parallel on a CPU"):
        check_devices(config, None)
    with pytest.raises(UsageProblem, match=r"enable_async_tensor_parallel on a CPU"):
        refuse_without_device(config)


def test_the_compiler_keeps_no_budget_of_split_weights() -> None:
    config = job(tensor_parallel_degree=2)
    config.compile.enable, config.activation_checkpoint.mode = True, "memory_budget"
    with pytest.raises(ConfigError, match=r"memory_budget with parallelism\.tensor_parallel_degree 2") as caught:
        validate(config, 2)
    assert 'selective_ac_option "op"' in caught.value.hint


def test_anomalies_are_not_looked_for_in_split_tensors() -> None:
    config = job(tensor_parallel_degree=2)
    config.debug.detect_anomaly = True
    with pytest.raises(ConfigError, match=r"debug\.detect_anomaly with parallelism\.tensor_parallel_degree 2"):
        validate(config, 2)
    config.parallelism.tensor_parallel_degree = 1
    assert validate(config, 2).dp_shard == 2
