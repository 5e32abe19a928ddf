"""Run `workbench bisect` on tiny scripts that are run twice, the second time with one change."""

import json
import math

import pytest
import torch
from recordings import FAULT, recordings
from torch import nn

from analyzers import run
from analyzers.errors import InputError
from analyzers.parity import bisect, bisect_report
from analyzers.parity.bisect_report import tolerance_of
from analyzers.store import Options
from benchmarks.bisection import CASES, answer, is_right, train
from workbench.present.parity_lines import operation_lines
from workbench.recorders import record_tensors


@pytest.mark.parametrize("name", ["the same run twice", "scale of attention", "learning rate"])
def test_a_planted_difference_is_named(name):
    a, b, expected = CASES[name]
    report = answer(a, b)
    assert is_right(report, expected), report.verdict.sentence


def test_the_forward_code_between_two_modules(tmp_path):
    """A wrong scale is in no submodule: the answer names the module whose forward has it, and the position there."""
    a, b, _ = CASES["scale of attention"]
    [train(tmp_path / name, change._replace(steps=1)) for name, change in (("a", a), ("b", b))]
    [finding] = bisect(tmp_path / "a", tmp_path / "b", Options(cache=False)).findings
    assert "between the activation of layers.1.attention.qkv and the input of layers.1.attention.out" in finding.next


def record_lines(folder, *lines):
    """Write a recording of these tensors; each is (step, kind, name, value, dtype)."""
    (folder / "values").mkdir(parents=True)
    rows = [{"schema": "workbench.values/1"}]
    for step, kind, name, value, dtype in lines:
        sums = dict.fromkeys(("sum", "absolute", "square", "projection"), value)
        rows.append({"step": step, "kind": kind, "name": name, "dtype": dtype, "elements": 4, "length": 4, **sums})
    (folder / "values" / "rank_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_not_finite_in_both_runs_agrees_and_in_one_run_does_not(tmp_path):
    rows = [(1, "input", "model", 2.0, "float32"), (1, "activation", "model", None, "float32")]
    a, same = record_lines(tmp_path / "a", *rows), record_lines(tmp_path / "b", *rows)
    assert bisect(a, same).verdict.kind == "equal"
    other = record_lines(tmp_path / "c", rows[0], (1, "activation", "model", 2.0, "float32"))
    report = bisect(a, other)
    assert (report.verdict.kind, report.data.first.module) == ("module", "model")
    assert math.isinf(report.data.first.difference)
    assert "is not finite in run A" in report.findings[0].why


def test_a_buffer_is_blamed_on_the_forward_passes_that_update_it(tmp_path):
    """BatchNorm with another momentum: the weights, activations and gradients of the first step agree."""
    for name, momentum in (("a", 0.1), ("b", 0.2)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        recorder = record_tensors(model, tmp_path / name, steps=2)
        for _ in range(2):
            model(torch.randn(16, 8)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        recorder.close()
    report = bisect(tmp_path / "a", tmp_path / "b")
    assert report.verdict.kind == "buffer"
    [finding] = report.findings
    assert "the buffer 1.running_mean differs before step 2" in finding.title
    assert "momentum" in finding.next


def test_weights_that_the_last_update_left_are_no_step_of_their_own(tmp_path):
    rows = [(1, "parameter", "w", 1.0, "float32"), (1, "activation", "model", 2.0, "float32")]
    weights = (2, "parameter", "w", 1.5, "float32")
    a, b = (record_lines(tmp_path / name, *rows, weights) for name in "ab")
    data = bisect(a, b).data
    assert (data.steps, data.a.last_step, data.compared) == (1, 1, 3)


@pytest.mark.parametrize(("dtype", "difference", "kind"), [("float32", 1e-3, "module"), ("bfloat16", 1e-3, "equal")])
def test_the_dtype_decides_what_is_rounding(tmp_path, dtype, difference, kind):
    a = record_lines(tmp_path / "a", (1, "input", "model", 2.0, dtype), (1, "activation", "model", 2.0, dtype))
    b = record_lines(
        tmp_path / "b", (1, "input", "model", 2.0, dtype), (1, "activation", "model", 2.0 + difference, dtype)
    )
    report = bisect(a, b)
    assert report.verdict.kind == kind
    for note in (finding for finding in report.findings if finding.id == "bisect.rounding"):
        assert note.title.startswith("Runs A and B agree except for rounding")
        assert note.title.endswith("activation of module model in step 1 is the first tensor that is not identical")
        assert "random vector is 0.07 %; rounding in bfloat16 explains up to 1.6 %, which" in note.why
        assert note.next.endswith("can cause a difference this small, too.")
        assert note.evidence[0].text == "norm in run A: 1.41421356; in run B: 1.41456707"


def test_the_tolerance_is_that_of_the_formula():
    assert tolerance_of("float32", 0) == 4 * 2**-24
    assert tolerance_of("bfloat16", 10_000) == pytest.approx(4 * (2**-8 + 100 * 2**-24))
    assert tolerance_of("int64", 10_000) == 0


def test_rounding_that_grows_is_not_blamed_on_a_module(tmp_path):
    sizes = [1e-7, 5e-7, 1e-6, 2e-6, 4e-6]
    rows = [(1, "activation", f"layers.{n}", 1.0, "float32") for n in range(5)]
    a = record_lines(tmp_path / "a", *rows)
    b = record_lines(tmp_path / "b", *((*row[:3], 1 + size, row[4]) for row, size in zip(rows, sizes, strict=True)))
    assert bisect(a, b).verdict.kind == "drift"


def test_no_common_step_is_unknown(tmp_path):
    a = record_lines(tmp_path / "a", (1, "input", "model", 2.0, "float32"))
    b = record_lines(tmp_path / "b", (2, "input", "model", 2.0, "float32"))
    assert bisect(a, b).verdict.status == "unknown"


def test_a_run_without_recorded_tensors_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="no recorded tensors"):
        bisect(tmp_path, tmp_path)


def test_a_module_that_is_called_twice_has_two_names(tmp_path):
    """Otherwise a fault after its second call would be attributed to its first call."""
    act = nn.Tanh()
    recorder = record_tensors(model := nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act), tmp_path, steps=1)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model(torch.ones(2, 4))
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "values" / "rank_0.jsonl").read_text().splitlines()[1:]]
    assert {"1", "1#2"} <= {line["name"] for line in lines if line["kind"] == "input"}
    assert [line["name"] for line in lines if line["step"] == 2] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_end_of_training_is_no_step(tmp_path):
    """Evaluation between two updates of the optimizer is not recorded."""
    for name, evaluates in (("a", False), ("b", True)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        recorder = record_tensors(model, tmp_path / name)
        for step in range(2):
            model(torch.ones(2, 3) * step).sum().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
            if evaluates:
                with torch.no_grad():
                    model(torch.zeros(9, 3))
        recorder.close()
    assert bisect(tmp_path / "a", tmp_path / "b").verdict.kind == "equal"


def test_the_tables_show_both_sides_of_the_first_difference(tmp_path):
    """The module's tensors of that step, its neighbours, and each step's share of tensors that differ."""
    runs = [run.discover(folder) for folder in recordings(tmp_path)]
    first = bisect(*runs).data.first
    table = bisect_report.operation_table(*runs, Options())
    rows = bisect_report.around(table, first)
    assert list(zip(rows["kind"], rows["module"], strict=True)) == [
        ("activation", "embed"),
        ("input", FAULT),
        ("activation", FAULT),
        ("input", "layers.0.ffn"),
        ("activation", "layers.0.ffn"),
    ]
    assert list(rows["difference"] > rows["tolerance"]) == [False, False, True, True, True]
    assert rows["b"].iloc[2] / rows["a"].iloc[2] == pytest.approx(1.01)
    steps = bisect_report.step_table(table)
    assert list(steps["beyond"]) == [0, 5, 5]
    assert list(steps.index) == [1, 2, 3]


def test_an_infinite_difference_stands_at_the_top_of_the_chart(tmp_path):
    row = (1, "input", "model", 2.0, "float32")
    a = record_lines(tmp_path / "a", row, (1, "activation", "model", 2.0, "float32"))
    b = record_lines(tmp_path / "b", row, (1, "activation", "model", None, "float32"))
    table = bisect_report.operation_table(run.discover(a), run.discover(b), Options())
    lines = operation_lines(table, 1)
    assert list(lines.table["difference"]) == [-10.0, 1.0]
    assert "only one is finite, or sizes differ" in lines.texts[1]
