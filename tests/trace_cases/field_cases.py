"""Build labelled traces of jobs as they are met in the field: more hardware, libraries and habits than in `cases`.

The labels were written before the rules were read. Kernels carry the names that their libraries give them.
"""

from hashlib import sha256

from trace_cases.cases import NEXT, Case, products
from trace_cases.job import (
    A100,
    ADD,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    FLASH,
    GEMM,
    MI300,
    MUL,
    SOFTMAX,
    T4,
    V100,
    Job,
    product,
    train,
)  # fmt: skip

FIELD_CASES: dict[str, Case] = {}
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0_AFC1_AFEM1_AFEM1_ASEM1"
FP8 = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1_execute_segment_k_off_kernel"
CAST = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16tofloat32_copy_kernel_cuda"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1>>"
TO_HOST = "Memcpy DtoH (Device -> Pageable)"


def case(any_of=(), tolerated=(), said=(), unsaid=(), **advised):
    def register(build):
        name = build.__name__
        FIELD_CASES[name] = Case(build, advised, set(tolerated), name, set(any_of), tuple(said), tuple(unsaid))
        return build

    return register


def transfer(job, kernel, us, op="", *, blocks=True, stream=COMMUNICATION, after=(COMPUTE,), **args):
    """Add a communication kernel without the arguments of a collective; if it `blocks`, computations wait for it."""
    with job.within(op or "c10d::op", "cpu_op"):
        job.spend(4.0)
        end = job.launch(kernel, us, stream, after, **args)
    if blocks:
        job.free[COMPUTE] = max(job.free.get(COMPUTE, 0), end)


def read_scalar(job, op="aten::item"):
    """Let the host read one number from the device."""
    with job.within(op, "cpu_op"), job.within("aten::_local_scalar_dense", "cpu_op"):
        job.copy(TO_HOST, 1.5, 4, blocking=True)


# -- communication that is not called nccl ------------------------------------------------------------------------


@case(exposed_communication=4_800, unsaid=["bandwidth"])
def experts_dispatched_by_deepep():
    def body(job):
        for _ in range(4):
            products(8)(job)
            transfer(job, "void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*)", 20.0)
            transfer(job, "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*)", 480.0)
            products(8)(job)
            transfer(job, "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)", 700.0)

    return train(Job(world=8), body)


@case(exposed_communication=6_000, unsaid=["bandwidth"])
def experts_dispatched_by_pplx():
    dispatch = "void (anonymous namespace)::dispatchKernel<10u, true, true>(int*, unsigned long, std::byte*)"
    combine = "void (anonymous namespace)::combineKernel<16u, __nv_bfloat16, true, true>(__nv_bfloat16*, unsigned long)"

    def body(job):
        for _ in range(4):
            products(8)(job)
            transfer(job, dispatch, 800.0, "pplx_kernels::all_to_all_dispatch")
            products(8)(job)
            transfer(job, combine, 700.0, "pplx_kernels::all_to_all_combine")

    return train(Job(world=8), body)


@case(exposed_communication=7_000, unsaid=["pin_memory", "bandwidth"])
def weights_gathered_by_copy_engines():
    """Each peer's part is a copy of its own on one stream; the products wait for all seven."""

    def body(job):
        for _ in range(10):
            with job.within("symm_mem::_low_contention_all_gather", "cpu_op"):
                job.launch("void c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int)", 5.0, COPIES)
                for _ in range(7):
                    copy = "Memcpy PtoP (Device -> Device)"
                    job.copy(copy, 100.0, 30_000_000, stream=COPIES, after=(COMPUTE,))
            job.free[COMPUTE] = max(job.free.get(COMPUTE, 0), job.free[COPIES])
            products(8)(job)

    return train(Job(world=8), body)


@case()
def copy_engines_beside_products():
    def body(job):
        for _ in range(10):
            for _ in range(7):
                job.copy("Memcpy PtoP (Device -> Device)", 100.0, 30_000_000, stream=COPIES)
            products(8)(job)

    return train(Job(world=8), body)


@case(exposed_communication=4_800)
def rows_reduced_by_multimem():
    kernel = (
        "void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, c10::BFloat16*, unsigned long)"
    )

    def body(job):
        for _ in range(80):
            product(job)
            transfer(job, kernel, 60.0, "symm_mem::multimem_one_shot_all_reduce", stream=COMPUTE, after=())

    return train(Job(world=8), body)


@case(exposed_communication=4_100)
def experts_exchanged_by_nvshmem():
    def body(job):
        for _ in range(5):
            products(6)(job)
            with job.within("symm_mem::all_to_all_vdev", "cpu_op"):
                split = "exchangeSplitAndOffset(long*, long*, nvshmem_team_t)"
                job.launch(f"c10d::nvshmem_extension::{split}", 20.0)
                job.launch("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int)", 800.0)
            products(6)(job)

    return train(Job(world=8), body)


@case(exposed_communication=6_000, unsaid=["NCCL_", "CUDA"])
def generic_kernels_of_rccl_on_mi300():
    def body(job):
        for _ in range(6):
            products(8, us=420.0, kernel=TENSILE)(job)
            transfer(job, "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", 1000.0)

    return train(Job(MI300, world=8, runtime="hip"), body)


@case(exposed_communication=1_440)
def decoding_with_a_reduction_of_vllm():
    """120 reductions of 12 µs in a step of 6 ms, in a graph that is launched as a whole."""
    job = Job(MI300, world=8, runtime="hip", shapes=False)
    reduce = "void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)"
    for _ in range(6):
        with job.step():
            job.number += 1
            job.event("cudaGraphLaunch", "cuda_runtime", job.now, 60.0, correlation=job.number)
            begin = max(job.now + 10, job.free.get(COMPUTE, 0))
            job.now += 80
            for name, us in [(TENSILE, 20.0), (TENSILE, 17.0), (reduce, 12.0)] * 120:
                where = {"correlation": job.number, "device": 0, "stream": COMPUTE, "graph id": 3}
                job.event(name, "kernel", begin, us, pid=0, tid=COMPUTE, **where)
                begin += us + 0.3
            job.free[COMPUTE] = begin
    job.end()
    return job


# -- collectives --------------------------------------------------------------------------------------------------


@case(exposed_communication=12_000, unsaid=["bandwidth", "bucket"])
def stage_of_a_pipeline_that_waits():
    """Rank 3 of 4 waits for each microbatch of the stage before; the transfer itself would take 0.1 ms."""

    def body(job):
        for _ in range(4):
            job.collective("recv", 3_000.0, 1 << 24, group=2, blocks=True)
            products(20)(job)

    return train(Job(world=4, rank=3), body)


@case()
def gathers_of_fsdp_hidden_behind_products():
    def body(job):
        for i in range(16):
            job.collective("_allgather_base", 700.0, 1 << 24, blocks=i == 0, after=())
            products(10)(job)

    return train(Job(world=8), body)


@case(small_collectives=None, tolerated=["exposed_communication"])
def fsdp_around_each_linear_layer():
    def body(job):
        for _ in range(150):
            job.collective("_allgather_base", 25.0, 60_000, blocks=True)
            product(job, us=75.0, k=1024)

    return train(Job(world=8), body)


@case()
def loss_averaged_over_ranks():
    def after(job):
        for _ in range(5):
            job.collective("allreduce", 25.0, 1, dtype="Float", blocks=True)

    return train(Job(world=8), products(100), after=after, steps=4)


@case(small_collectives=None, tolerated=["exposed_communication"])
def synchronised_batch_norm():
    def body(job):
        for _ in range(106):
            product(job, us=150.0, k=2048)
            job.collective("_allgather_base", 30.0, 513, dtype="Float", blocks=True)

    return train(Job(world=8), body)


@case(exposed_communication=20_000, tolerated=["bus_bandwidth"])
def gradients_reduced_after_each_microbatch():
    def body(job):
        for _ in range(4):
            products(20)(job)
            job.collective("allreduce", 5_000.0, 1 << 29, blocks=True)

    return train(Job(world=8), body)


# -- the host -----------------------------------------------------------------------------------------------------


@case(compilation=66_667, unsaid=["GC", "garbage"])
def recompiled_in_the_middle():
    job = Job()

    def before(job):
        if job.steps == 4:
            job.wait()
            with job.within("_compile.compile_inner (dynamo_timed)"):
                job.spend(150_000)
                job.spend(250_000, "compile_fx_inner (dynamo_timed)")

    return train(job, products(100), before=before, steps=6)


@case(any_of=["launch", "python"], said=["graph"], unsaid=["dynamic"])
def graph_breaks_between_regions():
    """80 compiled regions of two short kernels each, with 150 µs of Python between them."""

    def body(job):
        for i in range(80):
            job.spend(150.0)
            with job.within(f"Torch-Compiled Region: {i}/0", "cpu_op"):
                job.spend(15.0, "TorchDynamo Cache Lookup", "cpu_op")
                for n in range(2):
                    name = f"triton_poi_fused_add_mul_{n}"
                    job.op(name, (name, 20.0))

    return train(Job(), body, steps=4)


@case(compilation=None, tolerated=["synchronising_call"])
def kernels_tuned_in_the_recording():
    fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1>>"

    def before(job):
        if job.steps != 2:
            return
        job.wait()
        with job.within("CachingAutotuner.benchmark_all_configs (dynamo_timed)"):
            for i in range(200):
                if i % 20 == 0:
                    job.spend(4_000)
                job.launch(fill, 60.0)
                job.launch("triton_per_fused_add_mean_mul_pow_rsqrt_0", 45.0)
                job.wait("cudaDeviceSynchronize")

    def body(job):
        for _ in range(40):
            job.op("triton_per_fused_add_mean_mul_pow_rsqrt_0", ("triton_per_fused_add_mean_mul_pow_rsqrt_0", 40.0))
            product(job)

    return train(Job(), body, before=before, steps=3)


@case(unsaid=["launch fewer", "Launch fewer", "graph break"])
def graph_of_short_kernels():
    """A decoding step as one graph: short kernels with the device's own gaps of 1 µs; the host is far ahead."""
    job = Job(shapes=False)
    for _ in range(6):
        with job.step():
            job.number += 1
            job.event("cudaGraphLaunch", "cuda_runtime", job.now, 90.0, correlation=job.number)
            begin = max(job.now + 10, job.free.get(COMPUTE, 0))
            job.now += 120
            for i in range(1200):
                name = "void gemv2T_kernel_val<int, int, __nv_bfloat16, float, 128, 16, 4, 4, false>"
                where = {"correlation": job.number, "device": 0, "stream": COMPUTE, "graph id": 3}
                job.event(name, "kernel", begin + 4.2 * i, 3.2, pid=0, tid=COMPUTE, **where)
            job.free[COMPUTE] = begin + 4.2 * 1200
    job.end()
    return job


@case(python=3_000, tolerated=["synchronising_call"], said=["item"])
def loss_read_in_each_step():
    """The host reads the loss, and then needs 3 ms of Python before the next launch."""

    def after(job):
        read_scalar(job)
        job.spend(3_000)

    return train(Job(), products(100), after=after, steps=6)


@case(any_of=["synchronising_call", "launch", "python"], said=["item"])
def gradient_norm_read_before_the_optimizer():
    job = Job()

    def clip(job):
        job.op("aten::_foreach_norm", ("void at::native::multi_tensor_apply_kernel<LpNormFunctor>", 200.0))
        read_scalar(job)
        with job.within("Optimizer.step#AdamW.step"):
            job.spend(2_500)

    return train(job, products(60), after=clip, steps=6)


@case(python=18_750, said=["1 of 8 steps"])
def collector_that_pauses_one_step_of_eight():
    def before(job):
        job.wait()
        if job.steps == 5:
            job.spend(150_000)

    return train(Job(), products(100), before=before, steps=8)


@case(python=250_000, tolerated=["pageable_copies"], said=["1 of 6 steps"], unsaid=["pin_memory"])
def checkpoint_saved_in_one_step_of_six():
    def after(job):
        if job.steps == 4:
            with job.within("checkpoint_save"):
                for _ in range(30):
                    job.copy(TO_HOST, 10_000.0, 60_000_000, blocking=True)
                job.spend(1_500_000)

    return train(Job(), products(100), after=after, steps=6)


@case(data_loader=300_000, said=["persistent_workers"])
def first_batch_of_an_epoch():
    load = NEXT.format("MultiProcessing")

    def before(job):
        job.spend(1_830_000 if job.steps == 4 else 50.0, load)

    return train(Job(), products(100), before=before, steps=6)


@case()
def main_process_that_loads_while_the_device_computes():
    load = NEXT.format("SingleProcess")
    return train(Job(), products(100), before=lambda job: job.spend(9_000, load), steps=6)


@case(any_of=["pageable_copies", "exposed_memory"])
def batches_copied_on_mi300():
    """ROCm does not say whether the host's memory is pinned; 6.7 GB/s suggests that it is not."""

    def before(job):
        job.copy("Memcpy HtoD (Host -> Device)", 6_000.0, 40_000_000, blocking=True)

    return train(Job(MI300, runtime="hip"), products(60, us=420.0, kernel=TENSILE), before=before)


@case(python=4_000, tolerated=["pageable_copies", "synchronising_call"])
def metrics_computed_on_the_host():
    def after(job):
        with job.within("aten::to", "cpu_op"), job.within("aten::copy_", "cpu_op"):
            job.copy(TO_HOST, 400.0, 2_000_000, blocking=True)
        job.spend(4_000)

    return train(Job(), products(60), after=after, steps=6)


@case(any_of=["synchronising_call", "launch"], said=["nonzero"])
def experts_in_a_loop():
    def body(job):
        for _ in range(8):
            products(2)(job)
            for _ in range(16):
                with job.within("aten::nonzero", "cpu_op"):
                    job.launch("void at_cuda_detail::cub::DeviceSelectSweepKernel<long>", 4.0)
                    job.copy(TO_HOST, 1.5, 4, blocking=True)
                job.spend(40.0)
                job.op("aten::index", ("void at::native::index_elementwise_kernel<128, 4>", 6.0), host=15.0)
                for _ in range(3):
                    product(job, us=14.0, m=128, k=4096, n=1408, host=10.0)
                job.op("aten::index_add_", ("void at::native::indexFuncLargeIndex<c10::BFloat16>", 6.0), host=15.0)

    return train(Job(), body)


@case()
def experts_in_one_grouped_product():
    kernel = (
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<"
        "cute::tuple<int, int, int>>>>"
    )

    def body(job):
        for _ in range(24):
            products(2)(job)
            dims = [[8192, 4096], [16, 4096, 1408]]
            for _ in range(3):
                job.op("aten::_grouped_mm", (kernel, 130.0), dims=dims)

    return train(Job(), body)


@case(data_loader=45_000, unsaid=["each step", "per step"])
def loader_without_annotated_steps():
    """The first batch comes before the first kernel: without marks of steps, nothing says that anyone waited for it."""
    job = train(
        Job(),
        products(40),
        before=lambda job: (job.wait(), job.spend(15_000, NEXT.format("MultiProcessing"))),
        steps=4,
    )
    job.events = [event for event in job.events if not event["name"].startswith("ProfilerStep")]
    return job


@case(launch=None, unsaid=["Python"])
def backward_thread_that_launches_late():
    def body(job):
        products(20)(job)
        main = job.thread
        job.thread = 4001
        for _ in range(500):
            with job.within("autograd::engine::evaluate_function: MulBackward0", "cpu_op"):
                job.op("aten::mul", (MUL, 3.0), dims=[[64, 64], [64, 64]], host=12.0)
        job.thread = main

    return train(Job(), body)


@case(python=30_000, tolerated=["exposed_copies"], unsaid=["fewer kernels", "CUDA graph"])
def optimizer_on_the_host():
    """Gradients go to the host, its processors update the parameters there for 30 ms, and these come back."""

    def body(job):
        products(100)(job)
        job.copy("Memcpy DtoH (Device -> Pinned)", 600.0, 30_000_000, blocking=True)
        with job.within("Optimizer.step#DeepSpeedCPUAdam.step"):
            job.spend(30_000, "aten::_fused_adamw_", "cpu_op")
        job.copy("Memcpy HtoD (Pinned -> Device)", 600.0, 30_000_000)

    job = Job()
    for _ in range(4):
        with job.step():
            body(job)
    job.end()
    return job


@case(launch=None, said=["CUDA_LAUNCH_BLOCKING"], tolerated=["synchronising_call"])
def launches_that_block():
    """Each launching call returns only when its kernel has ended."""
    job = Job()

    def op(job):
        with job.within("aten::mul", "cpu_op"):
            job.spend(12.0)
            job.launch(MUL, 25.0, takes=31.0)
            job.spend(3.0)

    for _ in range(3):
        with job.step():
            for _ in range(600):
                op(job)
    job.end()
    return job


@case(unsaid=["host bound", "Host bound"])
def kernels_lost_by_the_profiler():
    """Two of three kernels are missing, though their launches were recorded: the gaps are no idle time."""
    job = train(Job(), products(100), steps=4)
    kernels = [event for event in job.events if event["cat"] == "kernel"]
    lost = {id(event) for n, event in enumerate(kernels) if n % 3}
    job.events = [event for event in job.events if id(event) not in lost]
    return job


@case(launch=None, tolerated=["python"], unsaid=["CUDA graph", "cudaGraph"])
def short_kernels_on_an_xpu():
    job = Job(("Intel(R) Data Center GPU Max 1550", 0))

    def body(job):
        for _ in range(600):
            job.op("aten::add", (ADD, 2.0), dims=[[64, 64], [64, 64]], host=8.0)

    train(job, body)
    for event in job.events:
        if event["cat"] == "cuda_runtime":
            event["cat"] = "xpu_runtime"
            event["name"] = "urEnqueueKernelLaunch" if "Launch" in event["name"] else "urQueueFinish"
    return job


# -- work of the device -------------------------------------------------------------------------------------------


@case(elementwise=None, unsaid=["float32", "TF32"])
def float8_with_scales_from_separate_reductions():
    """The scale and the cast of each input take as long as the product: a compiler fuses them."""
    reduce = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxNanFunctor<float>>>"
    cast = "void at::native::vectorized_elementwise_kernel<4, at::native::float8_copy_kernel_cuda>"

    def body(job):
        for _ in range(40):
            dims = [[8192, 4096]]
            job.op("aten::abs", (MUL, 40.0), dims=dims)
            job.op("aten::amax", (reduce, 22.0), dims=dims)
            job.op("aten::mul", (MUL, 45.0), dims=[*dims, []])
            job.op("aten::clamp", (MUL, 45.0), dims=dims)
            job.op("aten::_to_copy", (cast, 32.0), dims=dims)
            job.op(
                "aten::_scaled_mm",
                (FP8, 165.0),
                dims=[[8192, 4096], [4096, 4096]],
                types=["c10::Float8_e4m3fn", "c10::Float8_e4m3fn"],
            )

    return train(Job(), body)


@case(recomputation=11_200)
def blocks_checkpointed_without_reentry():
    """The forward pass runs again inside the first node of each block's backward pass."""

    def body(job):
        for _ in range(20):
            with job.within("aten::linear", "cpu_op"):
                args = {"Sequence number": 100, "Fwd thread id": 0}
                job.op("aten::mm", (GEMM, 280.0), dims=[[8192, 4096], [4096, 4096]], **args)
            product(job)
        main = job.thread
        job.thread = 4001
        for i in range(20):
            node = {"Fwd thread id": 1, "Sequence number": 100 + i}
            with job.within("autograd::engine::evaluate_function: MmBackward0", "cpu_op", **node):
                for n in range(2):
                    args = {"Sequence number": 1000 + 2 * i + n, "Fwd thread id": 0}
                    with job.within("aten::linear", "cpu_op", **args):
                        job.op("aten::mm", (GEMM, 280.0), dims=[[8192, 4096], [4096, 4096]], **args)
                with job.within("MmBackward0", "cpu_op", **node):
                    product(job)
                    product(job)
            with job.within("MmBackward0", "cpu_op", **node):
                product(job)
                product(job)
        job.thread = main

    return train(Job(), body)


@case(elementwise=None, said=["fused=True"])
def optimizer_by_foreach():
    """Eight passes over 500 million parameters in float32, where one would do: 12 ms instead of 4."""
    job = Job()
    passes = (
        ("aten::_foreach_mul_", "BinaryOpScalarFunctor", 1200.0),
        ("aten::_foreach_lerp_", "TernaryOpScalarFunctor", 1800.0),
        ("aten::_foreach_mul_", "BinaryOpScalarFunctor", 1200.0),
        ("aten::_foreach_addcmul_", "PointwiseOpScalarFunctor", 1800.0),
        ("aten::_foreach_sqrt", "UnaryOpFunctor", 1200.0),
        ("aten::_foreach_div_", "BinaryOpScalarListFunctor", 1200.0),
        ("aten::_foreach_add_", "BinaryOpScalarFunctor", 1200.0),
        ("aten::_foreach_addcdiv_", "PointwiseOpScalarListFunctor", 2400.0),
    )
    for _ in range(3):
        with job.step():
            products(150)(job)
            with job.within("Optimizer.step#AdamW.step"):
                for name, functor, us in passes:
                    kernel = f"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{functor}<float>>"
                    job.op(name, *[(kernel, us / 6)] * 6)
    job.end()
    return job


@case(elementwise=4_500, said=["set_to_none"])
def gradients_filled_with_zeros():
    def before(job):
        with job.within("Optimizer.zero_grad#AdamW.zero_grad"):
            for _ in range(300):
                job.op("aten::zero_", (FILL, 15.0), dims=[[4096, 4096]], host=2.0)

    return train(Job(), products(140), before=before)


@case(any_of=["cross_entropy", "elementwise"], said=["cross entropy"], unsaid=["attention"])
def logits_in_float32():
    """Casts, log-softmax and their backward pass over 128 256 columns take 11.4 of 60 ms."""

    def body(job):
        products(60)(job)
        logits = [8192, 128_256]
        product(job, us=9_000.0, n=128_256)
        job.op("aten::_to_copy", (CAST, 2_200.0), dims=[logits])
        soft = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>"
        job.op("aten::_log_softmax", (soft, 2_900.0), dims=[logits], types=["float"])
        loss = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
        job.op("aten::nll_loss_forward", (loss, 10.0), dims=[logits, [8192]], types=["float", "long int"])
        job.op("aten::_log_softmax_backward_data", (soft, 4_200.0), dims=[logits, logits], types=["float"] * 2)
        job.op("aten::_to_copy", (CAST, 2_100.0), dims=[logits], types=["float"])
        product(job, us=9_000.0, k=128_256, n=4096)
        product(job, us=9_000.0, m=4096, k=8192, n=128_256)

    return train(Job(), body)


@case(misaligned=None)
def vocabulary_of_gpt2_on_an_a100():
    kernel = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_nn_align1>"

    def body(job):
        products(30, us=1050.0, kernel="ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn")(job)
        for m, k, n in ((8192, 4096, 50_257), (8192, 50_257, 4096), (4096, 8192, 50_257)):
            product(job, us=33_000.0, m=m, k=k, n=n, kernel=kernel)

    return train(Job(A100), body)


@case(layout_copies=None)
def layouts_changed_by_miopen():
    def body(job):
        for _ in range(30):
            job.op(
                "aten::miopen_convolution",
                ("batched_transpose_32x32_half", 70.0),
                ("igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64", 300.0),
                ("batched_transpose_32x32_half", 60.0),
            )

    return train(Job(MI300, runtime="hip"), body)


@case(elementwise=None)
def rotary_embeddings_written_out():
    cat = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<c10::BFloat16, unsigned int, 4, 64, 64>"
    neg = "void at::native::vectorized_elementwise_kernel<4, at::native::neg_kernel_cuda(at::TensorIteratorBase&)>"

    def body(job):
        for _ in range(24):
            products(2)(job)
            for _ in range(2):
                dims = [[4, 32, 2048, 128], [4, 1, 2048, 128]]
                job.op("aten::mul", (MUL, 50.0), dims=dims)
                job.op("aten::neg", (neg, 25.0), dims=[[4, 32, 2048, 64]])
                job.op("aten::cat", (cat, 50.0), dims=[[], []])
                job.op("aten::mul", (MUL, 50.0), dims=dims)
                job.op("aten::add", (ADD, 75.0), dims=dims)

    return train(Job(), body)


@case(float32=None, unsaid=["TF32", "tf32", "bf16", "bfloat16"])
def float32_on_a_t4():
    return train(Job(T4), products(10, us=34_000.0, kernel="volta_sgemm_128x64_tn", kind="float"))


@case(unsaid=["TF32", "tf32", "bf16", "bfloat16"])
def float16_on_a_v100():
    attention = "fmha_cutlassF_f16_aligned_64x64_rf_sm70(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t>)"

    def body(job):
        for _ in range(20):
            products(2, us=2_600.0, kernel="volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", kind="c10::Half")(job)
            with job.within("aten::scaled_dot_product_attention", "cpu_op"):
                job.op("aten::_efficient_attention_forward", (attention, 900.0))

    return train(Job(V100), body)


@case(unfused_attention=None)
def teacher_with_flash_and_student_without():
    def body(job):
        for _ in range(12):
            product(job)
            with job.within("aten::scaled_dot_product_attention", "cpu_op"):
                dims = [[4, 32, 2048, 64]] * 3
                job.op("aten::_scaled_dot_product_flash_attention", (FLASH, 300.0), dims=dims)
            products(3)(job)
        for _ in range(6):
            product(job)
            job.op("aten::bmm", (GEMM, 300.0), dims=[[64, 2048, 64], [64, 64, 2048]])
            job.op("aten::div", (MUL, 450.0), dims=[[4, 16, 2048, 2048], []])
            job.op("aten::add", (ADD, 450.0), dims=[[4, 16, 2048, 2048], [4, 1, 1, 2048]])
            job.op("aten::_softmax", (SOFTMAX, 450.0), dims=[[4, 16, 2048, 2048]])
            job.op("aten::native_dropout", (MUL, 500.0), dims=[[4, 16, 2048, 2048]])
            job.op("aten::bmm", (GEMM, 300.0), dims=[[64, 2048, 2048], [64, 2048, 64]])

    return train(Job(), body)


@case(tolerated=["elementwise"], unsaid=["attention"])
def linear_attention_with_a_softmax_over_features():
    """The softmax is over 64 features and not over the sequence: no fused attention computes it."""

    def body(job):
        for _ in range(10):
            products(4)(job)
            job.op("aten::_softmax", (SOFTMAX, 20.0), dims=[[4, 32, 2048, 64]])
            job.op("aten::_softmax", (SOFTMAX, 20.0), dims=[[4, 32, 64, 2048]])
            job.op("aten::bmm", (GEMM, 60.0), dims=[[128, 64, 2048], [128, 2048, 64]])
            job.op("aten::bmm", (GEMM, 60.0), dims=[[128, 2048, 64], [128, 64, 64]])

    return train(Job(), body)


@case(unsaid=["MFU"])
def attention_in_an_operator_of_its_own():
    """A third of the time is in an operator whose FLOPs nobody counts, so MFU would be too low."""
    kernel = "void my_library::fused_block_kernel<__nv_bfloat16, 128>"

    def body(job):
        for _ in range(20):
            products(4)(job)
            job.op("my_library::attention_block", (kernel, 600.0), dims=[[4, 2048, 4096]])

    return train(Job(), body)


@case()
def activations_offloaded_beside_products():
    def body(job):
        for _ in range(40):
            products(2)(job)
            job.copy("Memcpy DtoH (Device -> Pinned)", 450.0, 20_000_000, stream=COPIES)

    return train(Job(), body, steps=4)


@case()
def training_on_mi300():
    attention = "attn_fwd.kd"

    def body(job):
        for _ in range(20):
            products(4, us=420.0, kernel=TENSILE)(job)
            with job.within("aten::scaled_dot_product_attention", "cpu_op"):
                job.op("aten::_scaled_dot_product_flash_attention", (attention, 500.0), dims=[[4, 32, 2048, 128]] * 3)

    return train(Job(MI300, runtime="hip"), body)


FIELD_ASIDE = sorted(name for name in FIELD_CASES if int(sha256(name.encode()).hexdigest(), 16) % 3 == 0)
"""The cases on which no rule was tuned."""
