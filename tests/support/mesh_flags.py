"""Flags for meshes of the trainer, and the check that a run on a mesh trains like one rank."""

from typing import Any

import pytest

TENSOR = ["--parallelism.tensor_parallel_degree", "2"]
CONTEXT = ["--parallelism.context_parallel_degree", "2"]
PIPELINE = ["--parallelism.pipeline_parallel_degree", "2"]
EXPERT = ["--parallelism.expert_parallel_degree", "2"]
COPIES = ["--parallelism.data_parallel_replicate_degree", "2"]
COMPILED = ["--compile.enable", "--compile.backend", "aot_eager"]
"""Flags for a backend that differentiates and lowers graphs like the default one, but needs no C++ compiler."""
BRIEF = ["--training.steps", "3", "--lr_scheduler.total_steps", "6"]
"""Flags for only the first steps of the same schedule: a wrong gradient shows in the second loss."""


def batch(sequences: int) -> list[str]:
    """Return the flags for this many sequences on each rank."""
    return ["--training.local_batch_size", str(sequences)]


def assert_same_curve(run: Any, alone: Any) -> None:
    """Check that every rank logged the same losses and gradient norms as the run of one rank."""
    expected = {step: loss for step, loss in alone.losses().items() if step in run.losses()}
    for rank in range(run.manifest()["world_size"]):
        assert run.losses(rank) == pytest.approx(expected, rel=1e-5)
    norms = [[line["grad_norm"] for line in lines] for lines in (run.lines(), alone.lines()[: len(expected)])]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert max(norms[0]) > 1, "gradients were clipped"
    assert run.manifest()["parameters"] == alone.manifest()["parameters"]
