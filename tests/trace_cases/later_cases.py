"""Build labelled traces that were written after the rules for `field_cases`, and run once: many need no advice."""

from trace_cases.cases import NEXT, Case, products
from trace_cases.field_cases import FILL, read_scalar
from trace_cases.job import ADD, COMMUNICATION, COMPUTE, FLASH, GEMM, H100, MI300, Job, product, train

LATER_CASES: dict[str, Case] = {}
HIPBLAS = "_UserArgs_MT128x128x16_MI16x16x1_SN_LDSB0_AFC1_AFEM1"


def case(any_of=(), tolerated=(), said=(), unsaid=(), **advised):
    def register(build):
        name = build.__name__
        LATER_CASES[name] = Case(build, advised, set(tolerated), name, set(any_of), tuple(said), tuple(unsaid))
        return build

    return register


@case(unsaid=["missing", "host bound"])
def graph_captured_in_the_recording():
    def before(job):
        if job.steps == 2:
            job.spend(5.0, "cudaStreamBeginCapture", "cuda_runtime")
            for _ in range(300):
                job.number += 1
                job.event("cudaLaunchKernel", "cuda_runtime", job.now, 4.0, correlation=job.number)
                job.now += 8.0
            job.spend(5.0, "cudaStreamEndCapture", "cuda_runtime")
            job.spend(9_000.0, "cudaGraphInstantiateWithFlags", "cuda_runtime")

    return train(Job(), products(100), before=before, steps=5)


@case(unsaid=["multiple"])
def small_odd_products_beside_large_ones():
    def body(job):
        products(60)(job)
        for _ in range(400):
            product(job, us=6.0, m=256, k=1022, n=254, kernel=GEMM, host=1.5)

    return train(Job(), body)


@case(float32=None, unsaid=["GradScaler"])
def float32_on_an_mi300():
    kernel = f"Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV{HIPBLAS}"
    return train(Job(MI300, runtime="hip"), products(20, us=2_400.0, kernel=kernel, kind="float"))


@case()
def tf32_on_an_mi300():
    kernel = f"Cijk_Ailk_Bljk_S_MX_B_Bias_HA_S_SAV{HIPBLAS}"
    return train(Job(MI300, runtime="hip"), products(20, us=900.0, kernel=kernel, kind="float"))


@case(unsaid=["logits"])
def loss_that_inductor_compiled():
    def body(job):
        products(60)(job)
        product(job, us=9_000.0, n=128_256)
        for name in ("triton_red_fused__log_softmax_nll_loss_0", "triton_poi_fused__log_softmax_backward_data_1"):
            job.op(name, (name, 1_500.0), dims=[[8192, 128_256], [8192]])
        product(job, us=9_000.0, k=128_256, n=4096)

    return train(Job(), body)


@case(tolerated=["elementwise"], unsaid=["logits"])
def classifier_over_a_thousand_classes():
    def body(job):
        products(20)(job)
        soft = "void at::native::(anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>"
        job.op("aten::_log_softmax", (soft, 300.0), dims=[[65_536, 1000]], types=["float"])
        job.op("aten::_log_softmax_backward_data", (soft, 400.0), dims=[[65_536, 1000]] * 2, types=["float"] * 2)

    return train(Job(), body)


@case(exposed_copies=3_000, unsaid=["ageable", "pin_memory=True"])
def pinned_batch_on_the_stream_of_the_model():
    def before(job):
        job.copy("Memcpy HtoD (Pinned -> Device)", 3_000.0, 150_000_000)

    return train(Job(), products(60), before=before, steps=4)


@case()
def gradients_that_are_set_to_none():
    def before(job):
        with job.within("Optimizer.zero_grad#AdamW.zero_grad"):
            job.spend(400.0)

    return train(Job(), products(60), before=before, steps=4)


@case(elementwise=3_000, said=["set_to_none"])
def gradients_cleared_by_memsets():
    def before(job):
        with job.within("Optimizer.zero_grad#SGD.zero_grad"):
            for _ in range(200):
                with job.within("aten::zero_", "cpu_op"):
                    job.launch("Memset (Device)", 15.0, call="cudaMemsetAsync", cat="gpu_memset", bytes=40_000_000)

    return train(Job(), products(100), before=before, steps=4)


@case(launch=None, tolerated=["python"], unsaid=["optimizer", "gradient"])
def answers_to_short_requests():
    """Inference of a small model: operators that take longer to launch than to run, and no backward pass."""
    job = Job()
    for _ in range(4):
        with job.step():
            for _ in range(200):
                job.op("aten::linear", (GEMM, 4.0), dims=[[32, 512], [512, 512], [512]], host=14.0)
                job.op("aten::gelu", (ADD, 2.0), dims=[[32, 512]], host=8.0)
    job.end()
    return job


@case(unsaid=["bubble"])
def receives_hidden_behind_microbatches():
    def body(job):
        for _ in range(4):
            job.collective("recv", 2_000.0, 1 << 24, group=2, after=())
            products(20)(job)

    return train(Job(world=4, rank=1), body)


@case(said=["less than 2 %"])
def compiling_while_the_queue_lasts():
    """The report says that code was compiled, and that it cost nothing."""

    def before(job):
        if job.steps == 3:
            job.spend(20_000, "_compile.compile_inner (dynamo_timed)")

    return train(Job(), products(100), before=before, steps=5)


@case(python=12_500, said=["valuat", "1 of 8 steps"])
def evaluation_in_one_step_of_eight():
    def after(job):
        if job.steps == 6:
            job.wait()
            job.spend(100_000, "eval")

    return train(Job(), products(100), after=after, steps=8)


@case(python=15_000, said=["gc.collect()", "2 of 8 steps"])
def collections_that_the_job_marks():
    def before(job):
        job.wait()
        job.spend(60_000 if job.steps % 4 == 0 else 20, "gc_collect")

    return train(Job(), products(100), before=before, steps=8)


@case(data_loader=8_000, said=["aten::item"])
def loader_that_only_waits_because_of_the_loss():
    def after(job):
        read_scalar(job)
        job.spend(8_000, NEXT.format("SingleProcess"))

    return train(Job(), products(100), after=after, steps=6)


@case(unsaid=["aten::item"])
def scaler_that_reads_whether_gradients_are_finite():
    def after(job):
        kernel = "void at::native::multi_tensor_apply_kernel<at::native::UnaryOpFunctor<c10::Half>>"
        job.op("aten::_amp_foreach_non_finite_check_and_unscale_", (kernel, 150.0))
        read_scalar(job)

    return train(Job(), products(80, kind="c10::Half"), after=after, steps=6)


@case(exposed_communication=5_600, said=["tensor paralleli"], unsaid=["bucket", "FSDP"])
def rows_reduced_by_nccl_for_tensor_parallelism():
    def body(job):
        for _ in range(80):
            product(job, us=140.0, n=2048)
            job.collective("allreduce", 70.0, 1 << 22, blocks=True)

    return train(Job(world=8, group="mesh_tp"), body)


@case(any_of=["float32", "float64"], said=["float64"])
def float64_by_accident():
    kernel = "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_tn_align1>"
    return train(Job(H100), products(20, us=5_200.0, kernel=kernel, kind="double"))


@case()
def attention_that_cudnn_fuses():
    kernel = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"

    def body(job):
        for _ in range(16):
            products(3)(job)
            with job.within("aten::scaled_dot_product_attention", "cpu_op"):
                job.op("aten::_scaled_dot_product_cudnn_attention", (kernel, 320.0), dims=[[4, 32, 2048, 128]] * 3)
            job.op("aten::_flash_attention_forward", (FLASH, 100.0))

    return train(Job(), body)


@case()
def masks_filled_for_each_batch():
    """Fills outside of zero_grad are part of the model's work, and take 1 % of a step."""

    def body(job):
        job.op("aten::fill_", (FILL, 200.0), dims=[[4, 1, 2048, 2048]])
        products(60)(job)

    return train(Job(), body)


@case(any_of=["exposed_communication", "small_collectives"])
def decoding_with_symmetric_kernels_of_nccl():
    kernel = "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)"

    def body(job):
        for _ in range(160):
            job.op("aten::mm", (GEMM, 40.0), dims=[[64, 4096], [4096, 1024]], host=1.5)
            end = job.launch(kernel, 12.0, COMMUNICATION, (COMPUTE,))
            job.free[COMPUTE] = max(job.free.get(COMPUTE, 0), end)

    return train(Job(world=8), body)
