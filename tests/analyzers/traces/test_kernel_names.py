"""Names of kernels, and bars, as tables show them."""

import pytest

from analyzers.words import kernel_name
from workbench.present.figure import bar

ADD, POINTERS = "at::native::CUDAFunctor_add<float>", "at::detail::Array<char*, 3>"


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


def test_bar_is_as_long_as_the_share():
    assert bar(1, 2, 10) == "█████"
    assert bar(0, 2, 10) == ""
    assert len(bar(1, 16, 10)) == 1
