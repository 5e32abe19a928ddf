"""Tests of the trainer's parts, each in isolation."""

import os
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from trainer.config import ConfigError, JobConfig
from trainer.config.checks import recompute_interval
from trainer.config.mesh import Degrees, degrees
from trainer.config.sections import ActivationCheckpoint, LRScheduler, Parallelism
from trainer.data.loader import Loader, Share
from trainer.data.source import synthetic_documents
from trainer.data.tokenizer import VOCAB_SIZE, encode
from trainer.distributed import set_timeouts
from trainer.errors import DataError
from trainer.local_data import Files, Position, local_files
from trainer.metrics import peak_flops
from trainer.models.decoder import build_model, init_weights
from trainer.parallel.data_parallel import apply_fsdp
from trainer.parallel.plan import apply_activation_checkpointing
from trainer.run_file import move_earlier_run
from trainer.step import lr_factor


def config_of(flavor: str) -> JobConfig:
    config = JobConfig()
    config.model.flavor, config.training.seq_len = flavor, 16
    return config


@pytest.mark.parametrize(
    ("flavor", "parameters"), [("8B", 8_030_261_248), ("70B", 70_553_706_496), ("405B", 405_853_388_800)]
)
def test_flavors_have_the_published_number_of_parameters(flavor: str, parameters: int) -> None:
    assert sum(p.numel() for p in build_model(config_of(flavor)).parameters()) == parameters


def test_weights_depend_on_the_seed_and_not_on_wrappers() -> None:
    def weights(seed: int, mode: str) -> list[torch.Tensor]:
        model = build_model(config_of("debugmodel"))
        apply_activation_checkpointing(model, ActivationCheckpoint(mode=mode), "unused")
        model.to_empty(device="cpu")
        init_weights(model, seed)
        return list(model.parameters())

    first, wrapped, other = weights(1, "none"), weights(1, "full"), weights(2, "none")
    assert all(torch.equal(a, b) for a, b in zip(first, wrapped, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.dim() == 2)
    assert not torch.equal(first[1], first[2])


def test_attention_does_not_look_ahead() -> None:
    model = build_model(config_of("debugmodel"))
    model.to_empty(device="cpu")
    init_weights(model, 0)
    tokens = torch.randint(0, 256, (1, 16))
    changed = tokens.clone()
    changed[0, 8] += 1
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :8], after[0, :8], atol=1e-6)
    assert not torch.allclose(before[0, 8:], after[0, 8:], atol=1e-3)


@pytest.mark.parametrize("kind", ["linear", "sqrt", "cosine"])
def test_the_learning_rate_warms_up_stays_and_decays(kind: str) -> None:
    config = LRScheduler(warmup_steps=2, decay_ratio=0.5, decay_type=kind, min_lr_factor=0.1)
    factors = [lr_factor(step, 10, config) for step in range(1, 11)]
    assert factors[:6] == [0.5, 1, 1, 1, 1, 1]
    assert all(a > b > 0.1 for a, b in pairwise(factors[5:]))
    assert lr_factor(11, 10, config) == pytest.approx(0.1)


def test_the_linear_decay_ends_one_step_after_the_last() -> None:
    config = LRScheduler(warmup_steps=2, decay_ratio=0.8)
    assert [lr_factor(step, 10, config) for step in (1, 2, 3, 4, 10)] == [0.5, 1.0, 1.0, 0.875, 0.125]
    assert lr_factor(10, 10, LRScheduler(warmup_steps=2, decay_ratio=0.0)) == 1.0
    assert lr_factor(10, 10, LRScheduler(warmup_steps=20)) == 1.0


def test_bytes_are_tokens() -> None:
    first, *text, last = encode("süß")
    assert bytes(text).decode() == "süß"
    assert first != last
    assert min(first, last) > max(text)
    assert max(encode("\uffff")) < VOCAB_SIZE


def test_synthetic_text_depends_on_the_seed_alone() -> None:
    first, again, other = (list(islice(synthetic_documents(seed), 3)) for seed in (1, 1, 2))
    assert first == again != other


def test_ranks_share_the_data_and_resume_anywhere() -> None:
    text = list(islice(synthetic_documents(0), 5))
    whole = Loader(text, 8, Share(batch=4))
    halves = [Loader(text, 8, Share(batch=2, rank=rank, ranks=2)) for rank in (0, 1)]
    batches = iter(whole)
    for _ in range(3):
        inputs, labels = next(batches)
        assert torch.equal(inputs[:, 1:], labels[:, :-1])
        assert torch.equal(inputs, torch.cat([next(iter(half))[0] for half in halves]))
    resumed = Loader(text, 8, Share(batch=4))
    resumed.load_state_dict(halves[1].state_dict())
    assert torch.equal(next(iter(resumed))[0], next(batches)[0])


def test_data_begin_again_at_the_end() -> None:
    loader = Loader(["abcdefgh"], 3, Share(batch=3))
    first, second = islice(loader, 2)
    assert loader.totals() == (10, 3)
    assert torch.equal(first[0], second[0])


def test_local_files_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("last")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    records = Files(local_files(tmp_path)).records(Position())
    assert [record.fields["text"] for record in records] == ["one", "two", "last"]


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", "no json"), ("a.jsonl", '{"words": 1}'), ("a.md", "text")])
def test_files_that_hold_no_text_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError):
        Loader(Files(local_files(tmp_path)), 8, Share(batch=1))


def test_too_little_text_is_refused() -> None:
    with pytest.raises(DataError, match="fewer than one sequence"):
        Loader(["short"], 64, Share(batch=1))


def test_degrees_fill_the_world() -> None:
    assert degrees(Parallelism(), 8) == Degrees(1, 8)
    assert degrees(Parallelism(data_parallel_replicate_degree=2), 8) == Degrees(2, 4)
    assert degrees(Parallelism(data_parallel_replicate_degree=8), 8) == Degrees(8, 1)
    for wrong in (Parallelism(data_parallel_replicate_degree=3), Parallelism(data_parallel_shard_degree=3)):
        with pytest.raises(ConfigError):
            degrees(wrong, 8)


def test_selective_checkpointing_needs_a_number_or_op() -> None:
    assert recompute_interval(ActivationCheckpoint(mode="selective", selective_ac_option="op")) == (1, True)
    assert recompute_interval(ActivationCheckpoint(mode="selective", selective_ac_option="3")) == (3, False)
    assert recompute_interval(ActivationCheckpoint(mode="none")) == (0, False)
    with pytest.raises(ConfigError):
        recompute_interval(ActivationCheckpoint(mode="selective", selective_ac_option="0"))


def test_the_peak_of_a_cpu_is_unknown() -> None:
    assert peak_flops(torch.device("cpu")) is None


def test_timeouts_reach_every_group(one_rank_group: None) -> None:
    import torch.distributed as dist

    groups = [dist.group.WORLD, dist.new_group(), dist.new_group(group_desc="checkpoint")]
    set_timeouts(33)
    seconds = [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]
    assert seconds == [33, 33, 1800], "a checkpoint may take longer"


def test_an_earlier_run_is_set_aside_but_not_its_checkpoints_nor_new_logs(tmp_path: Path) -> None:
    for name in ("logs/old/x", "steps/rank_0.jsonl", "dumps/rank_0", "checkpoint/step-1/.metadata", "traces/a", "mine"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "run.json").write_text('{"started_ns": 1700000000000000000}')
    (tmp_path / "logs" / "new").mkdir()
    for name, when in (("logs/old", 100), ("run.json", 200), ("logs/new", 300)):
        os.utime(tmp_path / name, (when, when))
    config = JobConfig()
    config.job.dump_folder, config.profiling.save_traces_folder = str(tmp_path), "traces"
    move_earlier_run(config)
    assert {path.name for path in tmp_path.iterdir()} == {"previous", "logs", "checkpoint", "mine"}
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["new"]
    aside = tmp_path / "previous" / "20231114T221320.000000Z"
    assert {path.name for path in aside.iterdir()} == {"run.json", "logs", "steps", "dumps", "traces"}
    move_earlier_run(config)
    assert len(list((tmp_path / "previous").iterdir())) == 1


def test_a_restart_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (tmp_path / "run.json").write_text("{}")
    config = JobConfig()
    config.job.dump_folder = str(tmp_path)
    move_earlier_run(config)
    assert (tmp_path / "run.json").exists()


@pytest.mark.usefixtures("one_rank_group")
def test_angles_of_positions_are_not_rounded_where_fsdp_computes_in_bfloat16() -> None:
    config, seen = config_of("debugmodel"), []
    model = build_model(config)
    world = SimpleNamespace(
        data=init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)),
        experts=None,
        device=torch.device("cpu"),
        degrees=SimpleNamespace(offload=False, tp=1),
    )
    apply_fsdp(model, world, config)
    model.to_empty(device="cpu")
    init_weights(model, 0)
    model.layers["0"].attention.register_forward_hook(lambda _, inputs, out: seen.extend([*inputs, out]))
    model(torch.zeros(1, 16, dtype=torch.long))
    x, rope, out = seen
    assert (x.dtype, out.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(rope, model.rope)
