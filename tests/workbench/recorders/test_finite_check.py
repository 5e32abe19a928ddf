"""The check that names the first operation whose result is not finite, on loops with one planted fault each."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from analyzers import incident
from benchmarks.not_finite import CASES, KEPT_BACK, answer, infinite_gradient, is_right, nan_in_parameter, perceptron
from workbench.recorders import check_finite
from workbench.recorders.startup.settings import VARIABLE, run_folder


@pytest.mark.parametrize("name", [*CASES, *KEPT_BACK])
def test_a_planted_fault_is_named(name):
    case = {**CASES, **KEPT_BACK}[name]
    said = answer(case)
    assert is_right(case, said), said


def test_the_verdict_of_a_run_is_the_operation(tmp_path):
    infinite_gradient(tmp_path)
    report = incident.analyze(tmp_path)
    assert report.verdict.kind == "nonfinite_loss"
    assert "backward pass of Sqrt" in report.verdict.sentence
    assert report.findings[0].evidence[0].line.rpartition(":")[0].endswith("not_finite.py")


def test_the_step_of_a_broken_parameter(tmp_path):
    nan_in_parameter(tmp_path)
    [finding] = incident.analyze(tmp_path).findings
    assert (finding.step, finding.ranks) == (3, [0])
    assert "2.weight" in finding.title


def test_nothing_is_left_behind(tmp_path):
    """After `close` no operations are logged, and the model has no hooks."""
    model = perceptron()
    check = check_finite(model, tmp_path)
    check.close()
    check.close()
    model(torch.full((1, 16), float("nan"))).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert not list(tmp_path.iterdir())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_ranks_that_received_the_value_are_not_blamed(tmp_path):
    """Rank 1 produced the NaN; rank 0 only received it."""
    folder = tmp_path / "not_finite"
    folder.mkdir()
    head = '{"schema": "workbench.not_finite/1", "rank": %d, "step": 6, "seen_in": "gradient", "seen_names": ["w"], '
    (folder / "rank_0.json").write_text(head % 0 + '"origin": {"kind": "input", "value": "nan"}}')
    (folder / "rank_1.json").write_text(head % 1 + '"origin": {"kind": "forward", "operation": "aten.log"}}')
    (folder / "rank_2.json").write_text("{")
    report = incident.analyze(tmp_path)
    assert report.verdict.ranks == [1]
    assert "Operation log returns" in report.verdict.sentence


def test_without_a_folder_the_run_that_was_launched_is_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder(None) == Path("outputs")
    monkeypatch.setenv(VARIABLE, json.dumps({"folder": str(tmp_path / "run"), "root": "/"}))
    assert run_folder(None) == tmp_path / "run"
    assert run_folder("other") == Path("other")
    model = nn.Linear(2, 1)
    check = check_finite(model)
    model.weight.grad = torch.full((1, 2), float("nan"))
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    check.close()
    assert (tmp_path / "run" / "not_finite" / "rank_0.json").is_file()
