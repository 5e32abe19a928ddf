"""Numbers as people read them."""

import pytest

from analyzers.words import duration, flops, share, size
from workbench.present.bar import bar
from workbench.present.tables.trace_rank import kernel_name

ADD, POINTERS = "at::native::CUDAFunctor_add<float>", "at::detail::Array<char*, 3>"


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.00 TiB")],
)
def test_size(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 ns"),
        (1.5e-6, "1.5 µs"),
        (999.7e-6, "1000 µs"),
        (0.0123, "12.3 ms"),
        (61.0, "61.00 s"),
        (600.0, "10.0 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (12, "12 FLOP"), (328e3, "328 kFLOP"), (9.89e14, "989 TFLOP"), (3e18, "3000 PFLOP")],
)
def test_operations(count, text):
    assert flops(count) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aten::addmm", "aten::addmm"),
        ("triton_poi_fused_add_cos_sin_0", "triton_poi_fused_add_cos_sin_0"),
        ("ncclDevKernel_AllReduce_Sum_f32(ncclDevComm*, unsigned long)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("void cutlass::Kernel2<cutlass_80_tn>(cutlass_80_tn::Params)", "Kernel2<cutlass_80_tn>"),
        ("void nchwToNhwc<float, (cudnnType_t)2>(dims<float>, float*)", "nchwToNhwc<float,(cudnnType_t)2>"),
        (
            f"void at::native::elementwise_kernel<4, {ADD}, {POINTERS} >(int, {ADD}, {POINTERS})",
            "elementwise_kernel<4,CUDA…_add<float>>",
        ),
        ("odd)name", "odd)name"),
        ("(", "("),
    ],
)
def test_a_kernels_name_is_what_tells_it_from_others(name, text):
    assert kernel_name(name, 38) == text


def test_share_of_nothing_is_unknown():
    assert share(1, 0) == "-"


def test_bar_is_as_long_as_the_share():
    assert bar(1, 2, 10) == "█████"
    assert bar(0, 2, 10) == ""
    assert len(bar(1, 16, 10)) == 1
