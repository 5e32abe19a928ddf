"""The use of PyTorch's attention operator with its math kernel is distinguished from attention that is written out."""

import json

import pytest
from trace_cases.cases import CASES

from analyzers import traces
from analyzers.traces.advice import TITLE
from analyzers.traces.attention import reason_of

QKV = [[4, 8, 512, 64]] * 3
FLOAT, HALF = ["float"] * 3, ["c10::Half"] * 3


def shapes(dims=QKV, types=FLOAT, mask=(), mask_type="", dropout="0.", grouped="False"):
    """Return the arguments of a call as the reader keeps them."""
    values = ["", "", "", "", dropout, "False", "", grouped]
    parts = [[*dims, [*mask], [], [], [], []], [*types, mask_type, "Scalar", "Scalar", "", "Scalar"], values]
    return "\0".join(json.dumps(part) for part in parts)


@pytest.mark.parametrize(
    ("call", "on_cpu", "on_gpu"),
    [
        (shapes(), "setting", "setting"),
        (shapes(dropout="0.10000000000000001"), "dropout", "setting"),
        (shapes(dims=[[4, 512, 64]] * 3), "dimensions", "dimensions"),
        (shapes(types=["double"] * 3), "setting", "type"),
        (shapes(types=["c10::Half", "c10::Half", "float"]), "type", "type"),
        (shapes(dims=[QKV[0], QKV[0], [4, 8, 512, 32]]), "value_size", "value_size"),
        (shapes(mask=[4, 1, 512, 512], mask_type="float"), "mask_gradient", "mask"),
        (shapes(mask=[4, 1, 512, 512], mask_type="bool"), "setting", "mask"),
        (shapes(dims=[[4, 8, 512, 62]] * 3, types=HALF, mask=[512, 512], mask_type="bool"), "setting", "head_size"),
        (shapes(dims=[[4, 8, 512, 62]] * 3, types=HALF), "setting", "setting"),
        (shapes(grouped="True"), "setting", "grouped"),
        (shapes(types=HALF, grouped="True"), "setting", "setting"),
        ("", "unknown", "unknown"),
        ("[]\0[]\0[]", "unknown", "unknown"),
    ],
)
def test_the_reason_follows_from_the_arguments(call, on_cpu, on_gpu):
    assert reason_of(call, [], on_gpu=False) == on_cpu
    assert reason_of(call, [], on_gpu=True) == on_gpu


def test_a_dropout_inside_shows_itself_without_shapes():
    assert reason_of("", ["aten::bmm", "aten::native_dropout"], on_gpu=False) == "dropout"
    assert reason_of("", ["aten::bmm", "aten::native_dropout"], on_gpu=True) == "unknown"


@pytest.mark.parametrize(
    ("name", "is_fallback"), [("sdpa_that_fell_back_to_math", True), ("attention_written_out", False)]
)
def test_the_finding_says_whether_the_operator_was_called(maker, name, is_fallback):
    findings = traces.analyze([maker.save(CASES[name].build().text())]).findings
    [finding] = [finding for finding in findings if finding.id == "trace.unfused_attention"]
    assert finding.title.startswith(TITLE) == is_fallback
    assert ("sdpa_kernel" in finding.next) == is_fallback
