"""Attention that is written out keeps its scores for the backward pass; a fused kernel keeps none."""

import pytest

from analyzers import memory
from analyzers.memory.what_if import what_if

MIB = 1 << 20


def stack(maker, *calls):
    """Return frames, innermost first; a call is `file function`, or the name of a native function."""
    pairs = [call.rpartition(" ") for call in calls]
    return [maker.frame(name, file or "??", int(bool(file))) for file, _, name in pairs]


MODEL = ("/job/block.py forward", "/job/train.py main")
OWN = (
    "/job/ops.py softmax", "/job/model.py scaled_dot_product_attention", *MODEL,
)  # fmt: skip
MODULE = ("/job/modules/softmax.py forward", "/job/modules/self_attention.py forward", *MODEL)
NATIVE = ("at::native::empty_cuda()", "at::_ops::_softmax::call()", "/job/attention.py forward", *MODEL)
LOSS = ("/job/ops.py log_softmax", "/job/ops.py cross_entropy", "/job/train.py main")
FUSED = ("at::_ops::_scaled_dot_product_flash_attention::call()", "/job/attention.py forward", *MODEL)
ROUTER = ("/job/moe.py softmax", "/job/moe.py route", *MODEL)
LOG = ("/job/ops.py log_softmax", "/job/attention.py forward", *MODEL)
MATH = (
    "at::_ops::_softmax::call()",
    "at::_ops::_scaled_dot_product_attention_math::call()",
    "/job/attention.py forward",
)
VALUES = ("at::_ops::bmm::call()", "/job/attention.py forward", *MODEL)


def scores(maker, calls, size, others=600 * MIB, layers=4):
    """Return the finding on scores in a pass of four layers, whose other activations have `others` bytes together."""
    made = maker.Recording()
    kept = []
    for _ in range(layers):
        kept.append(made.alloc(others // layers, stack(maker, "/job/mlp.py forward", *MODEL)))
        kept.append(made.alloc(size // layers, stack(maker, *calls)))
    for address in reversed(kept):
        gradient = made.alloc(MIB, stack(maker, "torch::autograd::Engine::evaluate_function()"))
        made.free(address)
        made.free(gradient)
    report = memory.analyze([maker.save(made.snapshot())])
    return next((finding for finding in report.findings if finding.id == "memory.attention_scores"), None)


@pytest.mark.parametrize("calls", [OWN, MODULE, NATIVE], ids=["function", "module", "operator"])
def test_scores_of_written_out_attention_are_found(maker, calls):
    finding = scores(maker, calls, 400 * MIB)
    assert finding.title == "Attention scores take 40 % of peak allocated memory on rank 0"
    assert finding.next.startswith("Use torch.nn.functional.scaled_dot_product_attention")
    assert "400.0 MiB" in finding.why
    assert "399.0 MiB lower" in finding.next or "400.0 MiB lower" in finding.next


@pytest.mark.parametrize(
    ("calls", "size"),
    [(LOSS, 400), (FUSED, 400), (ROUTER, 400), (LOG, 400), (VALUES, 400), (OWN, 20), (MATH, 400)],
    ids=["loss", "fused", "router", "log_softmax", "values", "small", "fallback of PyTorch"],
)
def test_other_memory_is_not_called_attention_scores(maker, calls, size):
    assert scores(maker, calls, size * MIB) is None


def test_attention_that_takes_the_math_kernel_is_told_apart_from_written_out_attention(maker):
    made = maker.Recording()
    kept = [made.alloc(100 * MIB, stack(maker, *MATH)) for _ in range(4)]
    made.alloc(100 * MIB, stack(maker, "/job/mlp.py forward", *MODEL))
    for address in kept:
        made.free(address, stack(maker, "torch::autograd::Engine::evaluate_function()"))
    findings = {finding.id: finding for finding in memory.analyze([maker.save(made.snapshot())]).findings}
    finding = findings["memory.attention_fallback"]
    assert finding.title.startswith("scaled_dot_product_attention takes its math kernel")
    assert finding.next.startswith("Call it once under sdpa_kernel(")
    assert "400.0 MiB lower" in finding.next
    assert "memory.attention_scores" not in findings


UNNAMED = "/job/model.py forward"
ENGINE = "autograd::engine::evaluate_function: SoftmaxBackward0"


def unnamed(maker, product, *, copies=()):
    """Record four layers of attention in functions with no telling name, as a recorder of operators writes them.

    Each saves a softmax of 32 MiB, and `copies` of it: (size, calls). `product` are the operators of its scores.
    """
    made, kept = maker.Recording(), []
    for _ in range(4):
        kept.append(made.alloc(10 * MIB, stack(maker, "aten::gelu", UNNAMED)))
        brief = [made.alloc(32 * MIB, stack(maker, *product, UNNAMED))]
        # The factor, and the mask with its scalar and a copy of this in another type.
        brief += [made.alloc(size, stack(maker, "aten::eq", UNNAMED)) for size in (8, 4, 4096, 4096, 8, 4, 4096)]
        brief += [made.alloc(32 * MIB, stack(maker, "aten::clone", "aten::masked_fill", UNNAMED))]
        kept.append(made.alloc(32 * MIB, stack(maker, "aten::_softmax", "aten::softmax", UNNAMED)))
        kept += [made.alloc(size, stack(maker, *calls)) for size, calls in copies]
        for address in brief:
            made.free(address)
    for address in reversed(kept):
        gradient = made.alloc(MIB, stack(maker, "aten::_softmax_backward_data", ENGINE, "/job/train.py backward"))
        made.free(address)
        made.free(gradient)
    return maker.save(made.snapshot())


def finding_of(recording):
    return next((f for f in memory.analyze([recording]).findings if f.id == "memory.attention_scores"), None)


def test_unnamed_attention_is_found_behind_its_mask_and_names_its_line(maker):
    finding = finding_of(unnamed(maker, ("aten::bmm", "aten::matmul")))
    assert "in forward (/job/model.py:1)" in finding.why
    assert finding_of(unnamed(maker, ("aten::mm", "aten::matmul", "aten::linear"))) is None


def test_a_copy_of_the_scores_in_16_bits_counts_and_the_next_layer_does_not(maker):
    copy, other = ("aten::_to_copy", "/job/attention.py forward"), ("aten::mm", "/job/mlp.py forward")
    bmm = ("aten::bmm", "aten::matmul")
    freed = [finding_of(unnamed(maker, bmm, copies=[(16 * MIB, calls)])).next for calls in (copy, other)]
    # 4 x 32 MiB and 64 MiB of the last product, with or without 4 x 16 MiB; a gradient of 1 MiB stays.
    assert "255.0 MiB lower" in freed[0]
    assert "191.0 MiB lower" in freed[1]


def test_scores_grow_with_the_square_of_the_sequence(maker):
    recording = unnamed(maker, ("aten::bmm", "aten::matmul"))
    [longer] = what_if([recording], "seq=2x")
    [larger] = what_if([recording], "batch=2x")
    # At the end of the forward pass: the layers' 40 MiB, and 4 x 32 MiB of scores beside 64 MiB of the last product.
    assert longer.peak_bytes == pytest.approx((40 + 128 + 64) * MIB, rel=0.01)
    assert longer.new_peak_bytes == pytest.approx((80 + 4 * 192) * MIB, rel=0.01)
    assert larger.new_peak_bytes == pytest.approx(2 * larger.peak_bytes, rel=0.01)
    assert "x 4, the square" in longer.changes[0].model
    assert "scores" not in larger.changes[0].model
