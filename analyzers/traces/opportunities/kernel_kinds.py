"""Recognise by its name what a kernel does, such as a matrix product, a pointwise operator or a layout copy."""

import re

_FLOAT32 = re.compile(
    r"(?<![a-z0-9])sgemm|_scudnn|simt_sgemm|implicit_convolve_sgemm<float|gemmSN_\w*<float|[dw]grad\w*_engine<float"
    r"|(?<![a-z])ffma(?![a-z])|explicit_convolve_sgemm|cutlass_\d+_simt_s|Cijk_A[a-z]+_B[a-z]+_S_?B_",
)
"""Matches kernels of float32 products and convolutions on ordinary cores: S means single (cuBLAS, cuDNN, Tensile).

In Tensile's names only the letters after the two operands are types: `Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV` is in float32,
`Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV` in bfloat16, and `Cijk_Alik_Bljk_S_MX_B` in TF32.
"""
_FLOAT64 = re.compile(
    r"(?<![a-z0-9])dgemm|_d884gemm|tensorop_d\d+gemm|_engine<double|convolve_dgemm|Cijk_A[a-z]+_B[a-z]+_D_?B_"
)
"""Matches kernels of float64 products and convolutions: D means double."""
_TENSOR_CORES = re.compile(r"tf32|s1688|s161\d\d|s884|h884|h1688|h16816|bf16|f16|half|hmma|wmma|tensorop|e4m3|e5m2")
"""Matches the names of kernels that use tensor cores or 16-bit numbers."""
SOFTMAX = re.compile(r"softmax_warp|cunn_SoftMax|softmax", re.IGNORECASE)
_LAYOUT_COPY = re.compile(
    r"nchwToNhwc|nhwcToNchw|batched_transpose_|transpose_read_write|nchw2nhwc|nhwc2nchw|SubTensorOp"
)
"""Matches kernels of cuDNN and MIOpen that only change the order of the dimensions of a tensor."""
_POINTWISE = re.compile(
    r"elementwise_kernel|elementwise_kernel_with_index|(?<!multi_tensor_)\breduce_kernel<|index_elementwise"
)
"""Matches pointwise kernels of eager PyTorch, which a compiler can fuse; Triton kernels are already fused."""
_ALREADY_FUSED = re.compile(r"^triton_|multi_tensor_apply|layer_norm|rms_norm|batch_norm|bn_[fb]w")


_PRODUCT = re.compile(
    r"gemm|nvjet_|cutlass|xmma|Cijk_|fprop|[dw]grad|convolve|winograd|cudnn.*conv|flash_(fwd|bwd)|fmha|AttentionKernel"
    r"|^attn_(fwd|bwd)|sdpa|scudnn",
    re.IGNORECASE,
)
_NO_PRODUCT = re.compile(r"permute|splitKreduce|nchwTo|nhwcTo|fbgemm_gpu|multi_tensor|elementwise|typeConvert")


def multiplies(name: str) -> bool:
    """Return whether a kernel of this name multiplies matrices, convolves or does attention."""
    return _PRODUCT.search(name) is not None and _NO_PRODUCT.search(name) is None


def runs_in_float32(name: str) -> bool:
    """Return whether a kernel of this name multiplies float32 numbers without tensor cores."""
    return _FLOAT32.search(name) is not None and _TENSOR_CORES.search(name) is None


def runs_in_float64(name: str) -> bool:
    """Return whether a kernel of this name multiplies float64 numbers."""
    return _FLOAT64.search(name) is not None


def is_pointwise(name: str) -> bool:
    """Return whether a kernel of this name is a pointwise operator of eager PyTorch, which a compiler could fuse."""
    return _POINTWISE.search(name) is not None and _ALREADY_FUSED.search(name) is None


def is_layout_copy(name: str) -> bool:
    """Return whether a kernel of this name only changes a tensor's layout."""
    return _LAYOUT_COPY.search(name) is not None
