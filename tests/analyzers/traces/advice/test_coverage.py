"""The inputs of utilisation: which kernels communicate or multiply, which operators count, and which peak is used."""

import pytest
from trace_cases.job import A100, GEMM, H100, V100, Job, product, train

from analyzers.traces.flops import multiplies, runs_in_float32, runs_in_float64
from analyzers.traces.loading import with_utilisation
from analyzers.traces.reading.trace import COMMUNICATION_NAMES

COMMUNICATES = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic_4",
    "ncclSymkDevKernel_AllGather_LL", "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void multimem_one_shot_all_reduce_kernel<float, 8>", "void two_shot_all_reduce_kernel<c10::BFloat16, 8>",
    "void vllm::cross_device_reduce_2stage<__half, 8>", "void quickreduce::allreduce_prototype_twoshot<x>",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half>", "void deep_ep::intranode::dispatch<8, 768>",
    "void internode_ll::combine<true, 7168>", "void nvshmemi_proxy_quiet", "void mscclKernel_Sum_half_Simple",
    "void (anonymous namespace)::dispatchKernel<10u, true, true>(int*, unsigned long, unsigned long)",
    "void (anonymous namespace)::combineKernel<16u, __nv_bfloat16, true, false>(__nv_bfloat16*)",
    "void a2a_combine_recv_kernel<true, 16ul, 8ul>", "allToAllV(void*, void*, long*, unsigned long, int)",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long)", "Memcpy PtoP (Device -> Device)",
    "userbuffers_fp16_sum_inplace_gpu_rw_ag", "exchangeSplitAndOffset(long*, int, int)",
)  # fmt: skip
COMPUTES = (
    GEMM, "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "fbgemm_gpu::permute_2D_data_kernel",
    "void my_router::dispatch_tokens<8>", "void flash::flash_fwd_splitkv_combine_kernel<true, 64>",
    "void combineKernel<float>(float*)", "Memcpy DtoD (Device -> Device)",
)  # fmt: skip


def test_communication_kernels_of_all_libraries_are_known_by_their_names():
    assert [name for name in COMMUNICATES if not COMMUNICATION_NAMES.search(name)] == []
    assert [name for name in COMPUTES if COMMUNICATION_NAMES.search(name)] == []


def test_float64_is_told_from_float32():
    names = "volta_dgemm_64x64_nt", "cutlass_80_tensorop_d884gemm_64x32", "Cijk_Ailk_Bljk_DB_MT32x32x8", GEMM
    assert [runs_in_float64(name) for name in names] == [True, True, True, False]
    assert not any(map(runs_in_float32, names))


@pytest.mark.parametrize(
    ("name", "products", "float32"),
    [
        ("ampere_sgemm_128x64_tn", True, True),
        ("volta_sgemm_64x64_nt", True, True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>", True, False),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>", True, False),
        ("void implicit_convolve_sgemm<__half, __half, 128>", True, False),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>", True, True),
        ("void fbgemm_gpu::permute_2D_sparse_data", False, False),
        ("attn_fwd", True, False),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN", True, False),
        ("Custom_Cijk_Ailk_Bljk_S_MX_B_BIAS_HA_S_SAV_NTD_SK3_UserArgs_MT256x256x32_MI16x16x1", True, False),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x16_SN", True, True),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1", True, True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", True, False),
    ],
)
def test_what_a_name_says_about_arithmetic(name, products, float32):
    assert (multiplies(name), runs_in_float32(name)) == (products, float32)


@pytest.mark.parametrize(
    ("device", "kind", "kernel", "peak"),
    [
        (H100, "c10::BFloat16", GEMM, 989e12),
        (A100, "float", "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4", 156e12),
        (A100, "float", "ampere_sgemm_128x64_tn", 19.5e12),
        (V100, "float", "volta_sgemm_128x64_nn", 15.7e12),
        (V100, "c10::Half", "volta_h884gemm_128x64_nn", 125e12),
        (H100, "c10::Float8_e4m3fn", "nvjet_qqtst_128x128", 1978e12),
    ],
)
def test_the_peak_is_that_of_the_numbers_that_ran(maker, device, kind, kernel, peak):
    job = train(Job(device), lambda job: product(job, kernel=kernel, kind=kind))
    [account] = maker.accounts(job.text())
    assert account.peak_flops_per_s == peak


@pytest.mark.parametrize(("unseen", "known"), [(2, True), (40, False)])
def test_a_utilisation_is_hidden_where_most_products_do_not_count(maker, unseen, known):
    """Custom operators have no formula, so their work is missing from the numerator."""

    def body(job):
        for _ in range(40):
            product(job)
        for _ in range(unseen):
            job.op("mylib::fused_mlp", (GEMM, 280.0))

    [account] = maker.accounts(train(Job(), body).text())
    assert account.flops_coverage == pytest.approx(40 / (40 + unseen), abs=0.01)
    assert (with_utilisation(account, None).mfu is not None) is known
