"""`workbench estimate`, compared with real runs, and on meshes that are too large for this machine."""

import json
import runpy
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import ranks
from trainer.config.mesh import model_parts
from trainer.config.sections import Parallelism
from trainer.estimate.rehearsal import Shallow, without_negatives
from trainer.estimate.tracker import Peak
from workbench.commands import estimate as estimate_command
from workbench.commands.estimate import estimate, limit_findings, verdict
from workbench.documents import EstimateData
from workbench.errors import UsageProblem
from workbench.launch.plan import Request

ROOT = Path(__file__).parents[3]
ERRORS = runpy.run_path(str(ROOT / "benchmarks" / "estimate.py"))
MESHES = runpy.run_path(str(ROOT / "benchmarks" / "parallelisms.py"))
CASES = ERRORS["CASES"]
LARGE = Request(config="llama3_8b", module="llama3", nproc=8, nnodes=8)


@pytest.fixture(scope="module", autouse=True)
def forked_trainer() -> Iterator[None]:
    """Fixture: fork the trainer's processes from one that has imported torch, which takes most of an estimate's
    time.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(estimate_command, "subprocess", SimpleNamespace(run=ranks.run_command))
    yield
    patch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[9], CASES[13]], ids=str)
def test_the_peak_is_foreseen(case: tuple, tmp_path: Path) -> None:
    """The error is usually a third of a per cent, and up to 3 % if gloo's copies are freed late."""
    row = ERRORS["compared"](case, tmp_path, ranks.start)
    assert abs(row["error"]) < 0.05, row
    for name in ("parameters", "optimizer_state", "gradients", "inputs"):
        real, foreseen = row["categories"].get(name, (0, 0))
        assert foreseen == pytest.approx(real, rel=0.01, abs=4096), name


@pytest.mark.slow
@pytest.mark.parametrize("case", [MESHES["CASES"][0], MESHES["CASES"][5], MESHES["CASES"][10]], ids=str)
def test_ranks_that_share_a_model_are_foreseen(case: tuple, tmp_path: Path) -> None:
    """The real peak varies by 3 %, because gloo frees its copies only when a rank has waited for the others."""
    real = MESHES["measured"](case, str(tmp_path), ranks.start)
    for rank, told, foreseen in MESHES["estimated"](case):
        peak, held = real[rank]
        assert told == pytest.approx(peak, rel=0.06)
        for name in ("parameters", "optimizer_state", "gradients"):
            assert foreseen.get(name, 0) == pytest.approx(held[name], rel=0.01), name


@pytest.mark.slow
@pytest.mark.parametrize("case", [MESHES["CASES"][0], MESHES["CASES"][6]], ids=str)
def test_what_a_rank_itself_allocates_is_foreseen(case: tuple, tmp_path: Path) -> None:
    """With full recomputation gloo's copies are up to 15 % of the peak, so here nothing is sent."""
    [(rank, told, _)] = MESHES["estimated"](case)
    assert told == pytest.approx(MESHES["alone"](case, rank, str(tmp_path), ranks.start), rel=0.02)


@pytest.mark.parametrize(
    ("schedule", "layers", "rank", "expected"),
    [
        ("1F1B", 32, 0, [range(8)]),
        ("1F1B", 32, 3, [range(25, 32)]),
        ("1F1B", 2, 3, [range(2, 2)]),
        ("Interleaved1F1B", 32, 1, [range(4, 9), range(21, 25)]),
        ("ZBVZeroBubble", 32, 0, [range(4), range(29, 32)]),
    ],
)
def test_layers_are_dealt_out(schedule: str, layers: int, rank: int, expected: list[range]) -> None:
    """The embedding and the output count as a layer each, so the first and the last stage have fewer layers."""
    config = Parallelism(pipeline_parallel_degree=4, pipeline_parallel_schedule=schedule)
    assert [part.layers for part in model_parts(rank, layers, config)] == expected
    every = [number for each in range(4) for part in model_parts(each, layers, config) for number in part.layers]
    assert sorted(every) == list(range(layers))


@pytest.mark.slow
def test_a_pipeline_keeps_what_its_schedule_has_under_way() -> None:
    """Under 1F1B stage i has (stages - i) microbatches in flight, under GPipe all of them."""
    flags = ("--parallelism.pipeline_parallel_degree", "3", "--training.local_batch_size", "4")
    kept = {}
    for schedule in ("1F1B", "GPipe"):
        chosen = (*flags, "--parallelism.pipeline_parallel_schedule", schedule)
        ranks = estimate(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=3, overrides=chosen), None).data.ranks
        kept[schedule] = [rank.categories["activations"] for rank in ranks]
    assert [round(kept["1F1B"][stage] / kept["GPipe"][stage] * 4) for stage in (0, 1)] == [3, 2]


def printed(code: str, folder: Path) -> dict:
    """Return the JSON that a new process prints; a new one, because a fake process group lasts as long as its
    process.
    """
    (folder / "job.py").write_text(code)
    done = ranks.run_job(str(folder / "job.py"), [], folder / "logs")
    return json.loads(done.output.splitlines()[-1])


DEPTHS = """
import json
import os
import runpy
from dataclasses import replace
from trainer.config import JobConfig
from trainer.config.mesh import Degrees
from trainer.estimate.rehearsal import window_peaks
from trainer.estimate.rehearsal import LocalProblem
from trainer.config.mesh import Part
from trainer.estimate.rehearsal import join_fake, rehearse
from trainer.models.decoder import model_args
config = JobConfig()
config.activation_checkpoint.mode, config.activation_checkpoint.selective_ac_option = {mode!r}, "2"
config.training.seq_len = 64
args = replace(model_args(config), n_layers={layers})
world = join_fake(LocalProblem(config, Degrees(dp_shard={ranks})), 0)
found = [window_peaks(config, world, args), rehearse(config, world, args, [Part(0, 1, range({layers}))])]
print(json.dumps([{{name: peak.total for name, peak in part.items() if "middle" not in name}} for part in found]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "layers"), [("full", 8), ("selective", 9)])
def test_deep_models_follow_from_shallow_ones(mode: str, layers: int, tmp_path: Path) -> None:
    foreseen, whole = printed(DEPTHS.format(mode=mode, layers=layers, ranks=4), tmp_path)
    assert foreseen == whole


@pytest.mark.parametrize("layers", [1, 2, 5, 9, 40])
@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_whole_periods_are_left_out(layers: int, period: int) -> None:
    shallow = Shallow.for_model(layers, period)
    if shallow is None:
        assert layers <= 2 * max(2, period) + 2 * period
        return
    assert shallow.few < shallow.more < layers
    assert (layers - shallow.few) % period == 0 == (shallow.more - shallow.few) % period


@pytest.mark.slow
def test_shards_make_the_states_smaller() -> None:
    data = estimate(LARGE, None).data
    assert data.parameters == 8030261248
    # Adam's two moments in float32, on 64 ranks.
    assert data.ranks[0].categories["optimizer_state"] == pytest.approx(2 * 4 * data.parameters / 64, rel=2e-3)


PIPELINE = "--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 2"
BY_OPERATION = "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op"


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", BY_OPERATION, "--activation_checkpoint.mode full", PIPELINE])
def test_modules_sum_to_the_categories(flags: str) -> None:
    """To the byte, although the peak of 32 layers follows from two models with fewer."""
    words = ("--training.seq_len", "512", *flags.split())
    for rank in estimate(replace(LARGE, nnodes=1, overrides=words), None).data.ranks:
        held = Counter[str]()
        for module in rank.modules.values():
            held.update(module)
        assert held == {name: size for name, size in rank.categories.items() if size}
        assert all(size > 0 for module in rank.modules.values() for size in module.values())
        assert rank.modules["layers.*.feed_forward.w1"]["optimizer_state"] > 0


def test_a_module_below_zero_takes_from_the_largest() -> None:
    peak = Peak(10, {("temporary", "a"): -3, ("temporary", "b"): 4, ("temporary", "c"): 6, ("inputs", "d"): 3})
    found = without_negatives(peak)
    assert found.holders == {("temporary", "a"): 0, ("temporary", "b"): 4, ("temporary", "c"): 3, ("inputs", "d"): 3}
    assert found.categories == peak.categories


@pytest.mark.slow
def test_uneven_shards_are_told() -> None:
    data = estimate(replace(LARGE, nproc=6, nnodes=1, overrides=("--training.seq_len", "512")), None).data
    assert [rank.first_rank for rank in data.ranks] == [0, 5]
    assert sum(rank.count for rank in data.ranks) == 6
    assert data.ranks[0].peak_bytes > data.ranks[1].peak_bytes


@pytest.fixture(scope="module")
def small() -> EstimateData:
    return estimate(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=2), None).data


@pytest.mark.parametrize(("times", "kind"), [(2, "healthy"), (1.05, "near_limit"), (0.5, "oom")])
def test_a_limit_gives_a_verdict(small: EstimateData, times: float, kind: str) -> None:
    data = msgspec.structs.replace(small, limit_bytes=int(small.peak_bytes * times))
    findings = list(limit_findings(data))
    assert verdict(data, findings).kind == kind
    assert bool(findings) == (kind != "healthy")


@pytest.mark.slow
def test_a_way_out_is_rehearsed(small: EstimateData) -> None:
    tight = estimate(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=2), small.peak_bytes // 2)
    assert tight.findings[0].next.startswith("Set --activation_checkpoint.mode full")
    assert tight.data.options[0].peak_bytes < small.peak_bytes // 2


@pytest.mark.slow
def test_a_validation_that_needs_more_than_the_training_is_advised_on() -> None:
    flags = ("--validation.enable", "--validation.local_batch_size", "64")
    report = estimate(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=1, overrides=flags), 20_000_000)
    assert report.data.ranks[0].peak_window == "eval"
    assert "reached in the validation" in report.findings[0].why
    assert report.findings[0].next.startswith("Set --validation.local_batch_size 32")


@pytest.mark.slow
def test_what_is_divided_is_said() -> None:
    flags = [f"--parallelism.{kind}_parallel_degree 2" for kind in ("tensor", "pipeline", "context")]
    sizes = ["--model.flavor debugmodel_large", "--training.local_batch_size 2", "--training.seq_len 512"]
    words = " ".join([*flags, *sizes])
    report = estimate(replace(LARGE, overrides=tuple(words.split())), None)
    assert report.data.mesh == {"dp_replicate": 1, "dp_shard": 8, "cp": 2, "tp": 2, "pp": 2, "ep": 1}
    assert report.data.assumptions == []
    # Whatever the dimension, the states are shared by all 64; a stage has an embedding or an output, which are large.
    shared = 2 * 4 * report.data.parameters / 64
    assert shared <= report.data.ranks[0].categories["optimizer_state"] < 1.5 * shared


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"nproc": 3, "nnodes": 1, "overrides": ("--parallelism.tensor_parallel_degree", "2")},
            "does not divide 3 ranks",
        ),
        ({"overrides": ("--parallelism.expert_parallel_degree", "2")}, "expert"),
        ({"overrides": ("--parallelism.tensor_parallel_degree", "16")}, "does not divide 8 key-value heads"),
        ({"overrides": ("--model.flavor", "9B")}, "no flavor"),
        ({"overrides": ("--parallelism.pipeline_parallel_degree", "64")}, "cannot make 64 stages"),
        (
            {"nproc": 4, "overrides": ("--parallelism.pipeline_parallel_degree=4", "--training.local_batch_size=2")},
            "needs at least 4 microbatches in PyTorch, and gets 2",
        ),
        (
            {"overrides": tuple(f"--parallelism.pipeline_parallel_{name}" for name in ("schedule=2F", "degree=2"))},
            "2F",
        ),
        ({"overrides": ("--training.seqlen", "9")}, "unknown key"),
    ],
)
def test_what_cannot_be_estimated_is_refused(change: dict, says: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        estimate(replace(LARGE, **change), None)
    assert says in caught.value.message
    assert caught.value.hint
