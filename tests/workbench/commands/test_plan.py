"""Test the report of a plan if nothing fits, or if nothing was found in time."""

from pathlib import Path

import msgspec
import pytest

from analyzers.report import Status
from workbench.commands.plan import in_words, plan, too_large, verdict
from workbench.documents import PlanData, PlannedSettings
from workbench.launch.plan import Request
from workbench.present.tables.estimate import plan_tables

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "parallelism.data_parallel_replicate_degree": 1, "parallelism.data_parallel_shard_degree": 2,
    "parallelism.context_parallel_degree": 1, "parallelism.tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1, "training.local_batch_size": 4, "training.enable_cpu_offload": False,
    "training.dtype": "float32", "activation_checkpoint.mode": "none",
}  # fmt: skip


def data(*, complete, ranks=()):
    return PlanData(
        world_size=2, model="llama3 debugmodel", parameters=1, limit_bytes=1 << 30, margin=0.1, device="cpu",
        candidates=9, rehearsed=4, complete=complete, seconds=1.0, next_larger=None, smallest_bytes=2 << 30,
        plans=[PlannedSettings(SETTINGS, 1 << 20, 1.0, 100.0, 100, {}, rank) for rank in ranks], speed_margin=0.2,
    )  # fmt: skip


@pytest.mark.parametrize(("complete", "status"), [(True, Status.ERROR), (False, Status.UNKNOWN)])
def test_nothing_found_in_time_is_unknown(complete, status):
    """Only a search that was completed shows that nothing fits."""
    found = data(complete=complete)
    findings = [too_large(found)] if complete else []
    assert verdict(found, findings).status is status


def test_a_validation_that_is_too_large_is_what_to_change():
    """The data say that all settings need more than the limit; here already the validation alone does."""
    found = data(complete=True)
    assert "Use more ranks" in too_large(found).next
    found = msgspec.structs.replace(found, validation_bytes=3 << 29)
    assert too_large(found).next == "Lower validation.local_batch_size: the validation alone needs 1.5 GiB."


def test_plans_of_equal_rank_are_said_to_be_undecided():
    """Speeds of a cost model that are nearly equal do not say which plan is the fastest."""
    found = data(complete=True, ranks=(1, 1, 3))
    assert "any of the 2 plans of rank 1 may be the fastest" in " ".join(verdict(found, []).missing)
    settings = plan_tables(found)[0]
    assert [row[0] for row in settings.rows] == ["1", "1", "3"]
    assert "equal ranks are within 20 %" in settings.title
    assert "may be the fastest" not in " ".join(verdict(data(complete=True, ranks=(1, 2)), []).missing)


def test_a_plan_is_named_by_what_it_changes():
    changed = SETTINGS | {"training.local_batch_size": 1, "training.enable_cpu_offload": True}
    assert in_words(PlannedSettings(changed, 1 << 20, 1.0, 100.0, 100, {}, 1)) == (
        "data_parallel_shard_degree 2, local_batch_size 1, enable_cpu_offload true, dtype float32, mode none"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "device", "notes"), [
    ("float32", "h100", ["plan.float32"]), ("float32", "cpu", []), ("bfloat16", "h100", []),
])  # fmt: skip
def test_float32_on_a_gpu_is_pointed_out(dtype, device, notes):
    """A debug configuration computes in float32, also if it is used to plan a large job."""
    flags = ("--training.mixed_precision_param", dtype, "--training.local_batch_size", "4")
    report = plan(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=1, overrides=flags), 1 << 30, 0.1, device, 1)
    assert [finding.id for finding in report.findings] == notes
    assert report.verdict.kind == "fits"
